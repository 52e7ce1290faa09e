"""The probe: fixed held-out rows on which teacher and student are compared during training.

The teacher is asked once, before the first step; what it says is kept (64 MB at most).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from compress.contracts import Batch, EncoderOutput, Needs
from compress.data.batches.evaluation_batches import evaluation_batches, restore_order
from compress.data.batches.examples import Examples
from compress.data.tables.table import Rows, Table, spread_places
from compress.data.task import ScoredAnswers
from compress.data.tasks import task_of
from compress.data.text.tokenizer import Tokenizer
from compress.training.precision import Resolved, autocast
from evaluation.quality.agreement import divergence

ROWS = 256
"""Enough to tell 50 % from 60 % with certainty, few enough to cost less than a validation."""
CELLS = 16_000_000
"""Of the logits that are kept: 64 MB in fp32."""
TOKENS = 8192

AskedModel = Callable[[Batch, Needs], EncoderOutput]
Carried = Callable[[Rows, Examples], Callable[[Batch], Batch]]
"""(rows, what the student reads of them) → gives batches of them what a teacher with another tokenizer reads."""


class Probe(ABC):
    """batches: on the run's device.  gold: (N,) right classes of the rows of `ask`, -100 where there is none, or None
    where answers are no classes.  score: figure that tells how alike two models answer, from -1 or 0 to 1.
    trained_by: the needs that objectives have which train what is compared."""

    batches: Sequence[Batch]
    gold: np.ndarray | None
    score: str
    trained_by: ClassVar[tuple[str, ...]]

    def __init__(self, precision: Resolved, device: str) -> None:
        self.precision: Resolved = precision
        self.device = torch.device(device)

    def ask(self, model: AskedModel) -> np.ndarray:
        """(N, C) float32: what a model answers."""
        return self._gathered([self._answers(model, batch) for batch in self.batches])

    def sample(self, model: AskedModel) -> np.ndarray:
        """What it answers to the first batch alone."""
        return self._answers(model, self.batches[0])

    def _answers(self, model: AskedModel, batch: Batch) -> np.ndarray:
        with torch.no_grad(), autocast(self.precision, self.device):
            return self._read(model, batch).float().cpu().numpy()

    @abstractmethod
    def _read(self, model: AskedModel, batch: Batch) -> torch.Tensor: ...

    @abstractmethod
    def _gathered(self, parts: Sequence[np.ndarray]) -> np.ndarray: ...

    @abstractmethod
    def compare(self, ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
        """How alike, by name; `score` is among them unless it is undefined."""

    @property
    @abstractmethod
    def what(self) -> str:
        """What the rows are, for people: `256 validation rows`."""

    def scale(self, answers: np.ndarray) -> float:
        """How far apart a model's outputs lie: their standard deviation, within a row where they are classes."""
        within = answers - answers.mean(1, keepdims=True) if self.gold is not None else answers
        return float(within.std())


class TaskProbe(Probe):
    """Evenly spaced validation rows, or those of `held`, encoded as in training."""

    trained_by = ("logits",)

    def __init__(
        self,
        table: Table,
        tokenizer: Tokenizer,
        max_length: int,
        precision: Resolved,
        device: str,
        rows: int = ROWS,
        carried: Carried | None = None,
        held: Rows | None = None,
    ) -> None:
        super().__init__(precision, device)
        self.kind = "held-out"
        if held is None:
            held = table.split("validation")
            self.kind = "training" if held is table.splits.get("train") else "validation"
        chosen = held.take(spread_places(len(held), rows))
        # Numbers that no two rows share: rows of several sources may, and windows of one row are known by theirs.
        self.rows: Rows = replace(chosen, numbers=np.arange(1, len(chosen) + 1, dtype=np.int64))
        self.task, self.names = task_of(table.task, table.settings), list(table.label_names)
        self.examples = self.task.encode(tokenizer, self.rows, max_length=max_length)
        batches = evaluation_batches(self.examples, TOKENS)
        given = batches if carried is None else map(carried(self.rows, self.examples), batches)
        self.batches = [batch.to(device) for batch in given]
        labels = self.examples.labels
        self.gold = labels if labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer) else None
        self.score = "correlation" if self.task.head[1] == "regression" else "agreement"

    @property
    def what(self) -> str:
        return f"{len(self.rows):,} {self.kind} rows"

    def _read(self, model: AskedModel, batch: Batch) -> torch.Tensor:
        logits = model(batch, Needs(logits=True)).logits
        assert logits is not None
        return logits

    def _gathered(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        rows = [batch.row_ids.cpu().numpy() for batch in self.batches]
        return restore_order(self.examples, zip(rows, parts, strict=True))

    def compare(self, ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
        alike = self.task.compare(ours, theirs, self.names, self.examples, self.rows)
        every = np.ones((1, alike.rows))
        return {name: float(figure(every)[0]) for name, figure in alike.figures.items()} | dict(alike.values)

    def score_answers(self, answers: np.ndarray) -> ScoredAnswers:
        """How good the answers are."""
        return self.task.score(answers, self.names, self.examples, self.rows)


class CorpusProbe(Probe):
    """The hidden pieces of some held-out blocks: the vocabulary logits there."""

    trained_by = ("mlm",)
    score = "agreement"

    def __init__(self, blocks: Sequence[Batch], vocabulary: int, precision: Resolved, device: str) -> None:
        """blocks: in order; as many are taken as their logits have room."""
        super().__init__(precision, device)
        room, taken = CELLS // vocabulary, []
        for block in blocks:
            part = _first_hidden(block, room)
            if part is None:
                break
            taken.append(part.to(device))
            room -= len(_labels(part))
        self.batches = taken
        self.gold = np.concatenate([_labels(b).cpu().numpy() for b in taken])

    @property
    def what(self) -> str:
        return f"{sum(len(_labels(b)) for b in self.batches):,} masked tokens of held-out text"

    def _read(self, model: AskedModel, batch: Batch) -> torch.Tensor:
        vocabulary = model(batch, Needs(mlm="masked")).vocabulary
        assert vocabulary is not None
        return vocabulary.logits()

    def _gathered(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts)

    def compare(self, ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
        kl = np.concatenate([divergence(a, b) for a, b in zip(_slices(ours), _slices(theirs), strict=True)])
        return {"agreement": float((ours.argmax(1) == theirs.argmax(1)).mean()), "kl": float(kl.mean())}

    def losses(self, answers: np.ndarray) -> np.ndarray:
        """(N,) cross entropies of the hidden pieces, in nats."""
        assert self.gold is not None
        found = []
        for part, gold in zip(_slices(answers), _slices(self.gold), strict=True):
            shifted = part - part.max(1, keepdims=True)
            found.append(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(gold)), gold])
        return np.concatenate(found)


def _labels(batch: Batch) -> torch.Tensor:
    assert batch.mlm_labels is not None
    return batch.mlm_labels


def _first_hidden(block: Batch, room: int) -> Batch | None:
    """The batch with its first `room` hidden pieces told; None where there is no room, or nothing hidden."""
    count = min(room, len(_labels(block)))
    if count < 1:
        return None
    assert block.mlm_positions is not None
    return replace(block, mlm_positions=block.mlm_positions[:count], mlm_labels=_labels(block)[:count])


def _slices(values: np.ndarray, size: int = 64) -> list[np.ndarray]:
    return [values[i : i + size] for i in range(0, len(values), size)]

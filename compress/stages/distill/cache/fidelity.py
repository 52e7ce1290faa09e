"""Compares cached teacher outputs with those of the live teacher on sample rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from compress.contracts import Batch, EncoderOutput, Teacher
from compress.data.batches.fixed_rows import FixedRows
from compress.data.tables.table import spread_places
from compress.objectives.soft_targets import Objective as SoftTargets
from compress.stages.distill.cache.fields import Field, live_needs
from compress.stages.distill.cache.shards import Shards

ROWS = 256
"""Of the data, evenly spread, that are asked again."""


@dataclass
class Fidelity:
    """One field's report over `rows` rows.

    max_error, mean_error: absolute, of the numbers that are kept (logits, hidden states …).  scale: the root mean
    square of the live numbers, to judge them by.  kl: mean KL(kept ‖ live) of probabilities at temperature 1, in nats,
    where the field gives any; of the largest logits, over them and "any other".  covered: mean share of the live
    probability that the largest logits have.
    """

    rows: int
    max_error: float = 0.0
    mean_error: float = 0.0
    scale: float = 0.0
    kl: float | None = None
    covered: float | None = None

    def sentence(self) -> str:
        """As people read it."""
        told = f"max error {self.max_error:.2g}, mean {self.mean_error:.2g} (numbers of size {self.scale:.2g})"
        if self.kl is not None:
            told = f"KL {self.kl:.2g} nats, {told}"
        return told + (f", {100 * self.covered:.2f} % of the probability mass kept" if self.covered is not None else "")


def compare(
    fields: Mapping[Field, Shards], rows: FixedRows, live: Teacher, kept: Teacher, device: str, max_tokens: int
) -> dict[Field, Fidelity]:
    """A report for each field, on `ROWS` rows or on all where there are fewer."""
    count = len(rows.lengths)
    sample = spread_places(count, ROWS)
    sums = {field: _Sums(len(sample)) for field in fields}
    needs = live_needs(list(fields))
    with torch.no_grad():
        for batch in rows.batches(sample, max_tokens):
            moved = batch.to(device)
            answers = live(moved, needs)
            for field, shards in fields.items():
                sums[field].add(field, shards, moved, answers, kept)
    return {field: total.report() for field, total in sums.items()}


class _Sums:
    """Of one field, over batches."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.largest = 0.0
        self.errors = self.squares = self.numbers = 0.0
        self.kl = self.answers = 0.0
        self.covered: list[float] = []
        self.entries = 0

    def add(self, field: Field, shards: Shards, batch: Batch, live: EncoderOutput, kept: Teacher) -> None:
        arrays, _ = shards.read(batch.row_ids.cpu().numpy())
        ours = field.decode(arrays)
        if field.top_k is None:
            theirs = field.of(live).float().cpu()
        else:
            theirs = self._at(field, arrays["ids"], live)
        if ours.numel():
            error = (ours - theirs).abs()
            self.largest = max(self.largest, float(error.max()))
            self.errors += float(error.double().sum())
            self.squares += float(theirs.double().square().sum())
            self.numbers += error.numel()
        self._divergence(field, batch, live, kept)

    def _at(self, field: Field, ids: np.ndarray, live: EncoderOutput) -> torch.Tensor:
        """The live teacher's logits at the pieces that were kept, less its largest; their share of its probability."""
        assert live.vocabulary is not None
        found = []
        places = torch.from_numpy(ids.astype(np.int64))
        for features, at in zip(live.vocabulary.features.split(256), places.split(256), strict=True):
            logits = live.vocabulary.__class__(features, live.vocabulary.weight, live.vocabulary.bias).logits().float()
            at = at.to(logits.device)
            self.covered.append(float(logits.softmax(1).gather(1, at).double().sum()))
            self.entries += len(at)
            found.append((logits.gather(1, at) - logits.amax(1, keepdim=True)).cpu())
        return torch.cat(found) if found else torch.zeros(0, field.width)

    def _divergence(self, field: Field, batch: Batch, live: EncoderOutput, kept: Teacher) -> None:
        """As the loss sees it: the kept answers are the teacher's, the live ones the student's."""
        if field.what == "logits" and field.width > 1:
            objective = SoftTargets(on="task", temperature=1.0)
        elif field.what == "vocabulary":
            objective = SoftTargets(
                on="vocabulary", temperature=1.0, positions="masked" if field.per == "masked" else "all"
            )
        else:
            return
        if count := objective.count(batch):
            assert objective.teacher_needs is not None
            value = objective(live, kept(batch, objective.teacher_needs), batch)
            self.kl += float(value) * count
            self.answers += count

    def report(self) -> Fidelity:
        n = max(1.0, self.numbers)
        return Fidelity(
            rows=self.rows,
            max_error=self.largest,
            mean_error=self.errors / n,
            scale=(self.squares / n) ** 0.5,
            kl=max(0.0, self.kl / self.answers) if self.answers else None,
            covered=sum(self.covered) / self.entries if self.entries else None,
        )


def worst(reports: Sequence[Fidelity]) -> dict[str, float]:
    """Figures of several fields as one: the largest error, and the largest KL where there is one."""
    found = {"cache_max_error": max(r.max_error for r in reports)}
    divergences = [r.kl for r in reports if r.kl is not None]
    return found | ({"cache_kl": max(divergences)} if divergences else {})

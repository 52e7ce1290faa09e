"""A tiny teacher and tiny rows for the teacher cache, of which everything can be compared with the live model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compress.contracts import Batch, Needs, Teacher
from compress.data.batches.examples import pack
from compress.data.batches.ragged import bounds_of, gather
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.infer.prepare import DTYPES, prepare
from compress.encoder.modules.model import Model
from compress.stages.distill.cache.fields import Settings, fields_of
from compress.stages.distill.cache.source import _words
from compress.stages.distill.cache.store import Identity, TeacherCache, Work
from compress.stages.distill.cache.teacher import CachedTeacher
from compress.stages.shared.stage import SharedParts, StageServices

VOCABULARY, ROWS = 50, 40


def teacher_model(task: HeadConfig | None = None, seed: int = 1, **changes: Any) -> Model:
    values: dict[str, Any] = {"vocabulary": VOCABULARY, "hidden": 24, "layers": 3, "heads": 2, "feed_forward": 48}
    config = EncoderConfig.uniform(**{**values, **changes})
    heads = {"mlm": HeadConfig("masked_lm"), "task": task or HeadConfig("classification", labels=12)}
    model = Model(config, heads).initialize(seed).eval()
    for name, parameter in model.named_parameters():  # random ones are so small that all answers are alike
        if "norm" not in name:
            parameter.data.mul_(8)
    return model


class ToyRows:
    """Rows of 3 to 12 pieces; every third piece is masked, a fifth of the rows have none.

    kind: of the task's head, which says how rows are labelled.
    """

    fingerprint = "f" * 64

    def __init__(self, rows: int = ROWS, seed: int = 0, kind: str = "classification") -> None:
        random = np.random.default_rng(seed)
        self.lengths = random.integers(3, 13, rows)
        self.offsets = bounds_of(self.lengths.tolist())
        self.ids = random.integers(5, VOCABULARY, self.offsets[-1]).astype(np.int32)
        self.masked = (np.arange(len(self.ids)) % 3 == 1) & (np.repeat(np.arange(rows), self.lengths) % 5 != 0)
        self.kind = kind

    def batch(self, rows: np.ndarray) -> Batch:
        tokens, offsets = gather(self.offsets, rows)
        at = np.flatnonzero(self.masked[tokens])
        return pack(
            np.where(self.masked[tokens], 4, self.ids[tokens]), offsets,
            segments=np.zeros(len(tokens), np.uint8), special=np.zeros(len(tokens), bool), row_ids=rows,
            mlm_positions=at, mlm_labels=self.ids[tokens[at]], **self.answers(rows, tokens),
        )  # fmt: skip

    def answers(self, rows: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
        if self.kind == "token_classification":
            return {"labels": self.ids[tokens] % 5, "answered": tokens % 2 == 0}
        if self.kind == "question_answering":
            return {"labels": np.stack([rows % 2, 1 + rows % 2], axis=1)}
        return {"labels": rows % 12}

    def batches(self, rows: np.ndarray, max_tokens: int) -> Sequence[Batch]:
        ranked = rows[np.argsort(self.lengths[rows], kind="stable")]
        return [self.batch(ranked[i : i + 7]) for i in range(0, len(ranked), 7)]


class Told:
    def update(self, done: int, **figures: float | str) -> None: ...


@dataclass
class Filler:
    """What a cache is filled with, and what was seen of it."""

    model: Model
    precision: Any = "fp32"
    said: list[str] = field(default_factory=list)
    asked: list[list[int]] = field(default_factory=list)
    stop: Callable[[], None] = lambda: None
    claims: Path | None = None
    share: Callable[[SharedParts], None] = lambda parts: parts.make()

    @property
    def services(self) -> StageServices:
        return StageServices(self.progress, self.stop, share=self.share, claims=self.claims)

    def live(self) -> Teacher:
        prepared = prepare(self.model, self.precision)

        def answer(batch: Batch, needs: Needs):
            self.asked.append(batch.row_ids.tolist())
            return prepared(batch, needs)

        return answer

    @contextlib.contextmanager
    def progress(self, label: str, total: int | None, unit: str = "steps", /) -> Iterator[Told]:
        yield Told()


def identity(**changes: Any) -> Identity:
    values = {"teacher": "a" * 64, "tokenizer": "b" * 64, "max_length": 12, "data": ToyRows.fingerprint}
    return Identity(**{**values, "precision": "fp32", **changes})


def opened(
    path: Path, model: Model, needs: Needs, rows: ToyRows, *, bits: Any = 32, top_k: int | None = None, **changes: Any
) -> tuple[TeacherCache, CachedTeacher]:
    """A cache and the teacher that reads it; `fill` is not called."""
    cache = TeacherCache(path, identity(**changes), rows)
    fields = fields_of(needs, model.config, model.head_configs, Settings(bits, top_k, cache.precision))
    held = cache.hold(fields)
    dtype = DTYPES[cache.precision]
    return cache, CachedTeacher(model.config, held, _words(model, held, dtype), dtype)


def filled(
    path: Path, model: Model, needs: Needs, rows: ToyRows, filler: Filler | None = None, **how: Any
) -> tuple[TeacherCache, CachedTeacher, dict[str, float]]:
    cache, teacher = opened(path, model, needs, rows, **how)
    filler = filler or Filler(model, how.get("precision", "fp32"))
    figures = cache.fill(Work(filler.live, teacher, "cpu", filler.said.append, filler.services))
    return cache, teacher, figures

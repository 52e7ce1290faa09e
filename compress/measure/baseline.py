"""What answers without an encoder, beside the measured models: a row of their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compress.contracts import BASELINE, BASELINES
from compress.data.tables.table import Table
from compress.data.tasks import task_of
from compress.data.text.baselines import ROWS
from compress.measure.measured_model import MeasuredModel
from compress.report.rows import format_figure, title
from compress.storage.spill import pieces
from evaluation.quality.chance import find_unbeaten


@dataclass(frozen=True)
class Baseline:
    """name: of `data.text.baselines`.  metric: the one that decides.  value: its figure on the measured rows."""

    name: str
    metric: str
    value: float

    @property
    def title(self) -> str:
        """What people call it."""
        return BASELINES[self.name]


def measure_baseline(
    table: Table, split: str, metric: str | None, say: Callable[[str], None] = lambda _: None
) -> Baseline | None:
    """The baseline's figure on a split, learned from the training rows; None where there is none: without training
    rows with labels, for kinds of task without one, and where its figure is undefined."""
    train, task = table.splits.get("train"), task_of(table.task, table.settings)
    if train is None or metric is None or train is table.split(split) or not task.has_baseline(table.split(split)):
        return None
    parts = pieces(train.labels) if isinstance(train.labels, np.ndarray) else [train.labels]
    known = ~np.concatenate([task.find_unlabelled(part) for part in parts])
    count = int(known.sum())
    if not count:
        return None
    say("scoring a baseline without an encoder")
    chosen = np.linspace(0, count - 1, min(ROWS, count)).astype(np.int64)
    train = train.take(chosen if count == len(known) else np.flatnonzero(known)[chosen])
    found = task.answer_by_baseline(train, table.split(split), table.label_names)
    if found is None or not np.isfinite(value := found[1].value(metric)):
        return None
    return Baseline(found[0], metric, value)


def with_baseline(measured: Sequence[MeasuredModel], baseline: Baseline | None) -> list[MeasuredModel]:
    """The models with the baseline's figure beside their own."""
    if baseline is None:
        return [*measured]
    told = {f"{BASELINE}{baseline.name}": baseline.value}
    made = [replace(m.measurement, values={**m.measurement.values, **told}) for m in measured]
    return [replace(m, measurement=one) for m, one in zip(measured, made, strict=True)]


def describe_weak(model: MeasuredModel, baseline: Baseline | None) -> str | None:
    """That a model is not above the baseline or chance, whichever is higher; None where it is, and where none could
    be: at the highest figure."""
    if model.scored is None or model.metric is None:
        return None
    metric, value = model.metric, model.scored.value(model.metric)
    levels = {} if baseline is None else {baseline.title: baseline.value}
    if (chance := model.scored.chance.get(metric, 1.0)) < 1:
        levels["chance"] = chance
    if (name := find_unbeaten(value, levels)) is None:
        return None
    return f"{title(metric)} {format_figure(metric, value)} is not above {name}, {format_figure(metric, levels[name])}"

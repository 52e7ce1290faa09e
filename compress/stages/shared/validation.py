"""Validation of a task while a stage trains: the student's outputs on held-out rows, and its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import nn

from compress.console.console import watch_slow_work
from compress.contracts import Batch, EncoderOutput, Needs, Teacher
from compress.data.batches.evaluation_batches import (
    EvaluationBatches,
    copy_to_host,
    evaluation_batches,
    restore_order,
    restore_outputs,
)
from compress.data.batches.examples import Examples
from compress.data.tables.table import Table, spread_places
from compress.data.tasks import task_of
from compress.data.tasks.embedding import OVERLAP
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.objectives.hard_labels import Objective as HardLabels
from compress.stages.shared.shared_pass import collect, share_out
from compress.stages.shared.stage import StageContext
from compress.stages.shared.task_data import TaskData
from compress.training.module import StageModule
from compress.training.precision import autocast
from evaluation.quality.retrieval import cosines
from evaluation.representation.neighbours import NEIGHBOURS, neighbour_overlap

VALIDATION_TOKENS = 8192
KEPT_TOKENS = 1 << 20
"""Tokens of validation rows whose batches are kept from one validation to the next: 40 MB."""
COMPARED_TEXTS = 1000
"""Texts whose neighbours are looked for among each other."""


def task_validation(
    data: TaskData, table: Table, context: StageContext, parent: Callable[[], Teacher] | None = None
) -> Callable[[nn.Module], dict[str, float]]:
    """The task's main metric, and the loss on the labels, of the student on the validation rows of the data.

    parent: whose outputs rows without labels are scored by, where the task can be; columns of the data come first.
    """
    examples, rows = data.validation, data.held_out
    assert rows is not None
    batches = BatchesOnDevice(evaluation_batches(examples, VALIDATION_TOKENS), len(examples.ids), context.device)
    task, names = task_of(table.task, table.settings), table.label_names
    metric = task.choose_metrics(names)[0]
    theirs = [rows.taught] if task.label_free and isinstance(rows.taught, np.ndarray) else []

    def validate(module: nn.Module) -> dict[str, float]:
        hard, shared = HardLabels(), share_out(batches.tokens)
        losses, counts, rows_of, outputs = [], [], [], []
        found = (batches[place] for place in shared)
        for batch, output in outputs_of(module, found, len(shared), Needs(logits=True), context):
            assert output.logits is not None
            counts.append(hard.count(batch.on_host))
            losses.append(hard(output, None, batch))
            rows_of.append(batch.on_host.row_ids.numpy())
            outputs.append(output.logits)
        copied = copy_to_host([*losses, *outputs])
        means = [float(mean) for mean in copied[: len(losses)]]
        parts = collect(shared, list(zip(means, counts, rows_of, copied[len(losses) :], strict=True)))
        if parts is None:
            return {}
        ours = restore_order(examples, ((rows_, logits) for _, _, rows_, logits in parts))
        loss, counted = sum(mean * count for mean, count, *_ in parts), sum(count for _, count, *_ in parts)
        if task.label_free and parent is not None and not theirs:
            theirs.append(collect_logits(parent(), batches, examples))
        if theirs:
            value = task.score_against(ours, theirs[0], names, examples, rows).value(metric)
            distance = mean_distance(ours, theirs[0], by_neighbours=metric == OVERLAP)
            return {metric: value if math.isfinite(value) else 0.0, "loss": distance}
        value = task.score(ours, names, examples, rows).value(metric)
        # A student that gives every row the same answer has no correlation: none, to choose the best weights by.
        return {metric: value if math.isfinite(value) else 0.0, "loss": loss / max(1, counted)}

    return validate


def collect_logits(
    model: Callable[[Batch, Needs], EncoderOutput], batches: Iterable[Batch], examples: Examples
) -> np.ndarray:
    """(N, C) logits of the examples, or (T, C) of their tokens, in their order. batches: of them, on the model's
    device."""
    parts = []
    for batch in batches:
        logits = model(batch, Needs(logits=True)).logits
        assert logits is not None
        parts.append((batch.on_host.row_ids.numpy(), logits))
    return restore_outputs(examples, parts)


def score_model(model: Model, validate: Callable[[nn.Module], Mapping[str, float]], metric: str) -> float:
    """The metric of a model by a `task_validation`. It is prepared: matrices are packed once, and rounded once."""
    with torch.no_grad():
        return validate(StageModule(prepare(model).model, {"hard_labels": (1.0, HardLabels())}))[metric]


def mean_distance(ours: np.ndarray, theirs: np.ndarray, *, by_neighbours: bool = False) -> float:
    """1 minus the mean cosine of two models' vectors (N, D); of vectors of other widths, (N, D) and (N, E), and
    by_neighbours, as where their axes differ, 1 minus the share of the nearest neighbours (at most half of the others)
    that both models have in common, among some of the texts. (The differences of their cosines would not do: training
    by similarities shifts all of them.)"""
    if ours.shape == theirs.shape and not by_neighbours:
        return 1.0 - float(cosines(ours, theirs).mean())
    some = spread_places(len(ours), COMPARED_TEXTS)
    neighbours = min(NEIGHBOURS, (len(some) - 1) // 2)
    if neighbours < 1:
        return 0.0
    return 1.0 - float(neighbour_overlap(ours[some], theirs[some], neighbours=neighbours).mean())


class BatchesOnDevice:
    """Batches on a device, where they stay if the tokens of all are few; else each is made when it is read."""

    def __init__(self, batches: EvaluationBatches, tokens: int, device: str) -> None:
        self.tokens = batches.tokens
        self._batches, self._device = batches, device
        self._kept = [batch.to(device) for batch in batches] if tokens <= KEPT_TOKENS else None

    def __getitem__(self, place: int) -> Batch:
        return self._batches[place].to(self._device) if self._kept is None else self._kept[place]

    def __iter__(self) -> Iterator[Batch]:
        return (self[place] for place in range(len(self.tokens)))


WATCHED: Mapping[str, Literal["max", "min"]] = {"loss": "min"}
"""What of a task's validation keeps a training of automatic length going, and decides between equal scores, beside the
main metric."""


def task_choice(table: Table) -> tuple[str, Literal["max", "min"]]:
    """What the best weights are chosen by."""
    return task_of(table.task, table.settings).choose_metrics(table.label_names)[0], "max"


def outputs_of(
    module: nn.Module, batches: Iterable[Batch], count: int, needs: Needs, context: StageContext
) -> Iterator[tuple[Batch, EncoderOutput]]:
    """What the student of a stage computes, batch by batch, in the precision of the training. count: of the batches."""
    student = module.student
    assert isinstance(student, Model)
    watched = watch_slow_work("validation", count, "batches")
    with autocast(context.precision, torch.device(context.device)), watched as progress:
        for done, batch in enumerate(batches, start=1):
            yield batch, student(batch, needs)
            progress.update(done)

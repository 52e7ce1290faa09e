"""Validation of a task while a stage trains: the student's outputs on held-out rows, and its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import nn

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
from compress.encoder.modules.model import Model
from compress.objectives.hard_labels import Objective as HardLabels
from compress.stages.shared.stage import StageContext
from compress.stages.shared.task_data import TaskData
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

    parent: whose outputs rows without labels are scored by, where the task can be.
    """
    examples, rows = data.validation, data.held_out
    assert rows is not None
    batches = _on_device(evaluation_batches(examples, VALIDATION_TOKENS), len(examples.ids), context.device)
    task, names = task_of(table.task, table.settings), table.label_names
    metric = task.choose_metrics(names)[0]
    theirs: list[np.ndarray] = []

    def validate(module: nn.Module) -> dict[str, float]:
        losses, counts, places, outputs, hard = [], [], [], [], HardLabels()
        for batch, output in outputs_of(module, batches, Needs(logits=True), context):
            assert output.logits is not None
            counts.append(hard.count(batch.on_host))
            losses.append(hard(output, None, batch))
            places.append(batch.on_host.row_ids.numpy())
            outputs.append(output.logits)
        found = copy_to_host([*losses, *outputs])
        ours = restore_order(examples, zip(places, found[len(losses) :], strict=True))
        loss = sum(float(mean) * count for mean, count in zip(found, counts, strict=False))
        if task.label_free and parent is not None:
            if not theirs:
                theirs.append(collect_logits(parent(), batches, examples))
            value = task.score_against(ours, theirs[0], names, examples, rows).value(metric)
            return {metric: value if math.isfinite(value) else 0.0, "loss": mean_distance(ours, theirs[0])}
        value = task.score(ours, names, examples, rows).value(metric)
        # A student that gives every row the same answer has no correlation: none, to choose the best weights by.
        return {metric: value if math.isfinite(value) else 0.0, "loss": loss / max(1, sum(counts))}

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


def mean_distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """1 minus the mean cosine of two models' vectors (N, D); of vectors of other widths, (N, D) and (N, E), 1 minus the
    share of the nearest neighbours that both models have in common, among some of the texts. (The differences of their
    cosines would not do: training by similarities shifts all of them.)"""
    if ours.shape == theirs.shape:
        return 1.0 - float(cosines(ours, theirs).mean())
    some = spread_places(len(ours), COMPARED_TEXTS)
    neighbours = min(NEIGHBOURS, len(some) - 1)
    if neighbours < 1:
        return 0.0
    return 1.0 - float(neighbour_overlap(ours[some], theirs[some], neighbours=neighbours).mean())


def _on_device(batches: EvaluationBatches, tokens: int, device: str) -> Iterable[Batch]:
    """The batches on the device, where they stay if their tokens are few; else each is made when it is read."""
    if tokens <= KEPT_TOKENS:
        return [batch.to(device) for batch in batches]
    return _BatchesOnDevice(batches, device)


class _BatchesOnDevice:
    """Batches that are made and moved to a device each time they are read."""

    def __init__(self, batches: EvaluationBatches, device: str) -> None:
        self._batches, self._device = batches, device

    def __iter__(self) -> Iterator[Batch]:
        return (batch.to(self._device) for batch in self._batches)


WATCHED: Mapping[str, Literal["max", "min"]] = {"loss": "min"}
"""What of a task's validation keeps a training of automatic length going, beside the main metric."""


def task_choice(table: Table) -> tuple[str, Literal["max", "min"]]:
    """What the best weights are chosen by."""
    return task_of(table.task, table.settings).choose_metrics(table.label_names)[0], "max"


def outputs_of(
    module: nn.Module, batches: Iterable[Batch], needs: Needs, context: StageContext
) -> Iterator[tuple[Batch, EncoderOutput]]:
    """What the student of a stage computes, batch by batch, in the precision of the training."""
    student = module.student
    assert isinstance(student, Model)
    with autocast(context.precision, torch.device(context.device)):
        for batch in batches:
            yield batch, student(batch, needs)

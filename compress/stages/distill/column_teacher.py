"""A teacher that is columns of the data: its logits of each training row were read with the rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from compress.contracts import Batch, EncoderOutput, Needs
from compress.data.batches.examples import Examples
from compress.data.batches.ragged import gather
from compress.data.tables.table import Table
from compress.data.tasks import task_of
from compress.encoder.config.encoder import HeadConfig
from compress.errors import UserError
from compress.stages.distill.initialization import Answers
from compress.stages.distill.spec import Spec
from compress.stages.distill.vectors import OWN

ONLY_LOGITS = Needs(logits=True)
COLUMNS = "columns of the data"
"""The fingerprint of such a teacher: that of the data holds what it said."""


class ColumnTeacher:
    """Is a `Teacher`: gives the logits, or vectors, of the rows of a batch and nothing else.

    logits: (N, C) of the training rows, or (T, C) of their tokens.  examples: the training rows.
    """

    def __init__(self, logits: np.ndarray, examples: Examples) -> None:
        self._logits = logits
        self._offsets = None if examples.words is None else examples.offsets

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput:
        """Row ids decide what is read."""
        rows, device = batch.row_ids.cpu().numpy(), batch.input_ids.device
        places = rows if self._offsets is None else gather(self._offsets, rows)[0]
        logits = torch.from_numpy(np.ascontiguousarray(self._logits[places])).to(device)
        return EncoderOutput(last_hidden=torch.zeros(batch.tokens, 0, device=device), logits=logits)

    def count_operations(self, batch: Batch, needs: Needs) -> int:
        """There are no products."""
        return 0


def check_columns_suffice(
    spec: Spec, objectives: Mapping[str, tuple[float, nn.Module]], *, tagged: bool, embeds: bool = False
) -> None:
    """Raise UserError for objectives that look inside a teacher, and for options that need one.

    tagged: the columns hold tags of tokens.  embeds: they hold vectors."""
    for name, (_, objective) in objectives.items():
        needs = getattr(objective, "teacher_needs")  # noqa: B009 - of every objective
        if needs is not None and needs != ONLY_LOGITS:
            what, do = ("vectors", f"{OWN}, as in recipe embed-vectors") if embeds else (
                "predictions", "soft_targets and hard_labels, as in recipe distilbert-task"
            )  # fmt: skip
            raise UserError(
                f"objective {name} reads more of the teacher than its {what}, which are all that columns hold",
                where="--teacher-column", do=f"use {do}",
            )  # fmt: skip
    unread = {"augmentation": spec.augmentation, "cache": spec.cache}
    for name, value in unread.items():
        if value is not None:
            why = "no teacher labels the copies" if name == "augmentation" else "no model is run"
            raise UserError(f"{name} is not supported with teacher columns", where=name, why=why, do="remove it")
    if tagged and spec.noise is not None:
        raise UserError(
            "noise is not supported with teacher columns of tags", where="noise",
            why="typos change the tokens that the columns belong to", do="remove it",
        )  # fmt: skip


def head_of_table(table: Table) -> Answers:
    """The head of a model for the labels of a table; for its vectors one with mean pooling."""
    task = task_of(table.task)
    kind, problem = task.head
    if task.label_free:
        taught = table.split("train").taught
        assert isinstance(taught, np.ndarray)
        return Answers(HeadConfig(kind=kind, labels=taught.shape[1], pooling="mean", normalize=True))
    return Answers(HeadConfig(kind=kind, labels=task.count_outputs(table.label_names), problem=problem),
                   tuple(table.label_names))  # fmt: skip

"""Stopping by agreement: how often the student gives the teacher's answers on text that it is not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, cast

import numpy as np
from torch import nn

from compress.data.tables.table import Rows, Table
from compress.data.text.tokenizer import Tokenizer
from compress.modelfolder.folder import LoadedModel
from compress.stages.distill.probe import AskedModel, Carried, TaskProbe
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.shared_pass import only_helps
from compress.stages.shared.stage import StageContext
from compress.stages.shared.task_data import encode_with_columns

PREFIX = "text_"
"""Before the names of figures on this text: the probe's own are of validation rows."""


class TextAgreement:
    """Held-out rows without labels, and what the teacher says of them.

    teacher: asked once; None where it is columns of the rows.  select, watched: as of `TrainingContext`."""

    def __init__(
        self,
        table: Table,
        held: Rows,
        loaded: LoadedModel,
        context: StageContext,
        teacher: AskedModel | None,
        carried: Carried | None,
    ) -> None:
        tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(loaded.path))
        length = task_max_length(context.recipe)
        self.probe = TaskProbe(
            table, tokenizer, length, context.precision, context.device, len(held), carried=carried, held=held
        )
        if teacher is None:
            columns = encode_with_columns(self.probe.task, tokenizer, held, length)[1]
            assert columns is not None
            self.theirs = np.asarray(columns)
        else:
            self.theirs = self.probe.ask(teacher)
        self.select: tuple[str, Literal["max", "min"]] = (f"{PREFIX}{self.probe.score}", "max")
        self.watched: Mapping[str, Literal["max", "min"]] = {f"{PREFIX}kl": "min"}

    def add_to(self, validate: Callable[[nn.Module], Mapping[str, float]]) -> Callable[[nn.Module], dict[str, float]]:
        """The validation with the figures on this text."""

        def validated(module: nn.Module) -> dict[str, float]:
            figures = validate(module)
            if only_helps():
                return {}
            ours = self.probe.ask(cast(AskedModel, module.student))
            alike = self.probe.compare(ours, self.theirs)
            score = alike.get(self.probe.score, 0.0)  # a student that gives every row the same score has none
            alike[self.probe.score] = score if math.isfinite(score) else 0.0
            return {**figures, **{f"{PREFIX}{name}": value for name, value in alike.items()}}

        return validated

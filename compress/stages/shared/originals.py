"""The trained model that a stage converts, and the real input that the conversion is judged on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from compress.contracts import Batch, BatchSource, MaskingSpec, Objective, TrainingPlan
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig
from compress.modelfolder.folder import LoadedModel, load_model
from compress.modelfolder.meta import FolderMeta
from compress.objectives.hard_labels import Objective as HardLabels
from compress.objectives.masked_lm import Objective as MaskedLM
from compress.stages.shared.corpora import corpus_batches
from compress.stages.shared.divergence import DrawnVectors, On, task_answers
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.stage import StageContext, require_folder
from compress.stages.shared.task_data import TaskData
from compress.stages.shared.task_head import check_same_labels

Level = Literal["general", "task_specific"]
"""Which text: the corpus, of a general teacher; the labelled rows, of a fine-tuned one."""


def plan_same_shape(
    level: Level,
    start: ModelShape | None,
    teacher: ModelShape | None,
    general: ModelShape | None,
    check: Callable[[EncoderConfig, str], None],
) -> ModelShape | None:
    """What a stage makes that changes matrices alone: its config is not known before. check: of what it is given."""
    made = start or (general if level == "general" else teacher)
    if made is None or made.config is None:
        return made
    check(made.config, "")
    return dataclasses.replace(made, config=None)


@dataclass(frozen=True)
class Original:
    """folder, loaded: the model of the stage before, or the teacher."""

    context: StageContext
    level: Level
    folder: Path
    loaded: LoadedModel

    @classmethod
    def of(cls, context: StageContext, level: Level, verb: str) -> Original:
        """Raises UserError without a model, or with one that has not the level's head or other labels than the data."""
        corpus = level == "general"
        donor = context.general_teacher if corpus else context.teacher
        folder = require_folder(context.model or donor, "a trained model to convert", "MODEL", verb)
        loaded = load_model(folder, require={"mlm" if corpus else "task"}, device=context.device)
        if not corpus:
            check_same_labels(loaded, context.table())
        return cls(context, level, folder, loaded)

    @property
    def answers(self) -> On:
        """What the text is answered with."""
        return "vocabulary" if self.level == "general" else task_answers(self.loaded.model)

    @functools.cached_property
    def source_of(self) -> Callable[[int], BatchSource]:
        """Rows of a step → its input; labelled rows are encoded on first use."""
        if self.level == "general":
            return functools.partial(_corpus_batches, self.context, self.folder, self.loaded)
        data = TaskData.encode(self.context.table(), self.loaded, self.context)
        return lambda rows: data.source(_plan(rows), self.context.seed)

    def meta(self, *notes: str) -> FolderMeta:
        """Lineage, recipe and data of what was made of it. notes: for the card."""
        c = self.context
        task = self.level == "task_specific"
        made = folder_meta(c, {"parent": self.folder}, c.table() if task else None, None if task else c.corpus())
        return made.model_copy(update={"notes": (*made.notes, *notes)})

    def batches(self, rows: int) -> Iterator[Batch]:
        """Real input in the order of the first epoch, so many rows a batch."""
        source = self.source_of(rows)
        for index in range(source.steps(0)):
            yield from (batch.to(self.context.device) for batch in source.step(0, index))

    def objective(self) -> Objective:
        """The loss that the model was trained with; of vectors one that reads no labels."""
        if self.answers == "vectors":
            return DrawnVectors(torch.Generator().manual_seed(self.context.seed))
        return HardLabels() if self.level == "task_specific" else MaskedLM()


def _corpus_batches(context: StageContext, folder: Path, loaded: LoadedModel, rows: int) -> BatchSource:
    block = context.recipe.corpus
    assert block is not None
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(folder))
    return corpus_batches(context, tokenizer, "train", MaskingSpec(), _plan(rows), block_length=block.max_length)


def _plan(rows: int) -> TrainingPlan:
    """For batches that nothing is trained on."""
    return TrainingPlan(steps=1, batch_rows=rows)

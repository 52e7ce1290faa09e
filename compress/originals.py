"""The trained model that a stage converts, and the real input that the conversion is judged on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compress.contracts import Batch, BatchSource, MaskingSpec, Objective, TrainingPlan
from compress.corpora import corpus_batches
from compress.data.tokenizer import Tokenizer
from compress.modelfolder.folder import LoadedModel, load_model
from compress.objectives.hard_labels import Objective as HardLabels
from compress.objectives.masked_lm import Objective as MaskedLM
from compress.stages import StageContext, TaskData, check_same_labels, require_folder

Level = Literal["corpus", "task"]
"""Which text: the corpus, of a general teacher; the labelled rows, of a fine-tuned one."""


@dataclass(frozen=True)
class Original:
    """folder, loaded: the model of the stage before, or the teacher.  source_of: rows of a step → its input."""

    context: StageContext
    level: Level
    folder: Path
    loaded: LoadedModel
    source_of: Callable[[int], BatchSource]

    @classmethod
    def of(cls, context: StageContext, level: Level, verb: str) -> Original:
        """Raises UserError without a model, or with one that has not the level's head or other labels than the data."""
        corpus = level == "corpus"
        donor = context.general_teacher if corpus else context.teacher
        folder = require_folder(context.model or donor, "a trained model to convert", "MODEL", verb)
        loaded = load_model(folder, require={"mlm" if corpus else "task"}, device=context.device)
        if corpus:
            source_of = functools.partial(_corpus_batches, context, folder, loaded)
            return cls(context, level, folder, loaded, source_of)
        check_same_labels(loaded, context.table())
        data = TaskData.encode(context.table(), loaded, context)
        return cls(context, level, folder, loaded, lambda rows: data.source(_plan(rows), context.seed))

    def batches(self, rows: int) -> Iterator[Batch]:
        """Real input in the order of the first epoch, so many rows a batch."""
        source = self.source_of(rows)
        for index in range(source.steps(0)):
            yield from (batch.to(self.context.device) for batch in source.step(0, index))

    def objective(self) -> Objective:
        """The loss that the model was trained with."""
        return HardLabels() if self.level == "task" else MaskedLM()


def _corpus_batches(context: StageContext, folder: Path, loaded: LoadedModel, rows: int) -> BatchSource:
    block = context.recipe.corpus
    assert block is not None
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(folder))
    return corpus_batches(context, tokenizer, "train", MaskingSpec(), _plan(rows), block_length=block.max_length)


def _plan(rows: int) -> TrainingPlan:
    """For batches that nothing is trained on."""
    return TrainingPlan(steps=1, batch_rows=rows)

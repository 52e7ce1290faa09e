"""The data that a run reads: opened once, and recorded by fingerprints."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import compress
from compress.data.reading.corpus import Corpus
from compress.data.reading.pool import TextVectors
from compress.data.tables.table import Table
from compress.data.task import METRIC
from compress.data.tasks.embedding import OVERLAP, form_of
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.cross_encoder import RANKING
from compress.modelfolder.family import stock_heads
from compress.modelfolder.folder import FolderInfo
from compress.modelfolder.resolve import resolve as resolve_model
from compress.modelfolder.sentence_head import EMBEDDING
from compress.run.selection import Selection
from compress.run.teachers import is_recipe, teacher_folder, teaches_task
from compress.stages.shared.corpora import open_corpus_of, words_read
from compress.stages.shared.labelled_data import get_requested_settings, open_table_of
from compress.stages.shared.model_shape import make_no_vectors_error, make_vector_objective_error
from compress.stages.shared.validation import task_choice
from compress.tracking.view import DEFAULT_QUALITY


class Sources:
    """The labelled data and the corpus of a recipe. say: prints a note about them.  vectors: makes what passages of a
    pool are compared by where the recipe asks for vectors.

    opened_table, opened_corpus: what was opened so far; None: nothing.
    """

    def __init__(
        self, selection: Selection, say: Callable[[str], None], vectors: Callable[[], TextVectors] | None = None
    ) -> None:
        self.selection, self.say, self.vectors = selection, say, vectors
        self.opened_table: Table | None = None
        self.opened_corpus: Corpus | None = None

    @property
    def table(self) -> Table:
        """The labelled data, opened on first use. Raises UserError."""
        if self.opened_table is None:
            model, first = self._labels_of(), self.selection.first
            head = None if model is None else model.heads.get("task")
            if head is not None and head.kind != EMBEDDING:  # before the rows, which its task may not read
                if first.own_pooling:
                    raise make_no_vectors_error(first.kind)
                if (objective := first.vector_objective()) is not None:
                    raise make_vector_objective_error(objective, ranks=head.problem == RANKING)
            self.opened_table = self._choose_metric(open_table_of(self.selection.recipe, model, vectors=self.vectors))
            self._note(self.opened_table.notes)
        return self.opened_table

    @property
    def corpus(self) -> Corpus:
        """The text without labels, opened on first use. Raises UserError."""
        if self.opened_corpus is None:
            self.opened_corpus = open_corpus_of(self.selection.recipe, lambda: self.table)
            self._note(self.opened_corpus.notes)
        return self.opened_corpus

    def _choose_metric(self, table: Table) -> Table:
        """Of texts alone the nearest neighbours that stay, where a stage turns the vectors and no metric is named."""
        recipe = self.selection.recipe
        turned = any(stage.turns_vectors() for stage in recipe.stages)
        if not turned or table.task != EMBEDDING or METRIC in get_requested_settings(recipe):
            return table
        if form_of(next(iter(table.splits.values()))) != "texts":
            return table
        return replace(table, settings={**table.settings, METRIC: OVERLAP})

    def _note(self, notes: Sequence[str]) -> None:
        for note in notes:
            self.say(note)

    def _labels_of(self) -> FolderInfo | None:
        """The model whose order of labels the table takes: the lead teacher, else the one that the run starts from."""
        recipe = self.selection.recipe
        rows = recipe.taught_by
        if rows and not is_recipe(rows[recipe.lead].model):
            info = _inspect_whole(teacher_folder(rows[recipe.lead].model))
            return info if teaches_task(recipe, info.heads) else None
        if not rows and recipe.model and self.selection.first.keeps_labels():
            info = _inspect_whole(resolve_model(recipe.model))
            return info if self.selection.first.compresses or "task" in stock_heads(info.heads) else None
        return None

    def open(self) -> None:
        """Open all that the stages read: errors in the data are found before a folder is made or a step is computed."""
        self._require_use_of_unlabelled()
        self._require_use_of_corpus()
        if "data" in self.selection.needs:
            self.table  # noqa: B018 - opened here, read by the stages
        if "corpus" in self.selection.needs:
            self.corpus  # noqa: B018
        words_read(self.selection.recipe, self.selection.indices)

    def _require_use_of_unlabelled(self) -> None:
        """Raise UserError for text without labels that no stage trains on."""
        data = self.selection.recipe.data
        stages = [self.selection.stage(index) for index in self.selection.indices]
        if data is not None and data.adds_text and not any(stage.reads_unlabelled() for stage in stages):
            where = "--unlabelled (data.unlabelled)" if data.unlabelled else "--pool (data.pool)"
            raise UserError(
                "text without labels has no effect: no stage that runs distils a teacher on the task",
                where=where, do="use a recipe that distils, such as distilbert-task, or remove it",
            )  # fmt: skip

    def _require_use_of_corpus(self) -> None:
        """Raise UserError for a corpus that no stage of the recipe reads."""
        recipe = self.selection.recipe
        if recipe.corpus is not None and not any("corpus" in stage.needs() for stage in recipe.stages):
            raise UserError(
                f"plain text has no effect: no stage of recipe {recipe.name} reads a corpus",
                where="--corpus (corpus.source)", do="remove it; text for a teacher to label is for --unlabelled",
            )  # fmt: skip

    def fingerprints(self) -> dict[str, str]:
        """What the run reads, teachers aside; a run is resumed only while it is the same."""
        read, recipe = {}, self.selection.recipe
        if recipe.model:
            read["model"] = modelfolder.fingerprint(resolve_model(recipe.model))
        for index in self.selection.indices:
            own = self.selection.stage(index).checkpoint()
            if own is not None:
                read[f"student of stage {index}"] = modelfolder.fingerprint(resolve_model(own))
        if self.opened_table is not None:
            read["data"] = self.opened_table.fingerprint
        if self.opened_corpus is not None:
            read["corpus"] = self.opened_corpus.fingerprint
        return read | words_read(recipe, self.selection.indices)

    def content_hash(self) -> str:
        """sha256 of recipe, data, corpus and this program's version: equal when the result would be equal."""
        recipe = self.selection.recipe
        parts = [compress.__version__, recipe.hash()]
        parts += [self.table.fingerprint] if recipe.data else []
        parts += [self.corpus.fingerprint] if recipe.corpus else []
        parts += words_read(recipe, self.selection.indices).values()
        folders = [recipe.model, *(row.model for row in recipe.taught_by if not is_recipe(row.model))]
        parts += [modelfolder.fingerprint(resolve_model(name)) for name in folders if name]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def quality(self) -> str:
        """The figure on the quality axis of the page's charts: the main metric of the task, where data was opened."""
        return DEFAULT_QUALITY if self.opened_table is None else f"quality/{task_choice(self.opened_table)[0]}"

    def given_model(self) -> Path | None:
        """The model that the recipe names, which its first stage starts from; None: there is none."""
        name = self.selection.recipe.model
        return resolve_model(name) if name else None


def _inspect_whole(folder: Path) -> FolderInfo:
    """What a folder holds. Raises UserError for a model with early exits, which no stage reads."""
    info = modelfolder.inspect(folder)
    if any(head.exits for head in info.heads.values()):
        raise modelfolder.refuse_exits(folder)
    return info

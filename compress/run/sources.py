"""What a run reads: its data, and who teaches; opened once, and told by fingerprints."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import compress
from compress.console import Console
from compress.contracts import ChainOptions, Override, RunOptions
from compress.data.reading.corpus import Corpus
from compress.data.tables.table import Table
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.resolve import resolve as resolve_model
from compress.recipe import Recipe, TeacherRow, load_recipe
from compress.run import chain
from compress.run.teachers import Teachers, is_recipe, overrides, teacher_folder
from compress.stages.shared.corpora import open_corpus_of, words_read
from compress.stages.shared.stage import Prepared, open_table_of, task_choice
from compress.tracking import Parent, experiment, resolve_store
from compress.tracking.view import DEFAULT_QUALITY


def asked_stages(recipe: Recipe, places: Sequence[int], asked: ChainOptions | None) -> tuple[int | None, list[int]]:
    """(the stage from which on all are made anew, those that run) of the stages at `places`. Raises UserError."""
    if asked is None:
        return None, list(places)
    begin = None if asked.begin is None else chain.find(recipe, places, asked.begin, "--from")
    end = places[-1] if asked.until is None else chain.find(recipe, places, asked.until, "--until")
    if begin is not None and begin > end:
        raise UserError(
            "nothing is left to run", where="--from", why=f"{chain.label(recipe, begin)} is behind --until",
            do=f"name one up to {chain.label(recipe, end)}",
        )  # fmt: skip
    return begin, [i for i in places if i <= end]


class Sources:
    """A recipe, and what it reads.

    indices: places of the stages that run.  whole: the last of them is the last that the command is about.  begin: the
    stage from which on all are made anew.  needs: blocks of the recipe that are read.  compresses: whether a model is
    made smaller, whoever teaches.  measures: whether the models are scored and timed at the end; whoever runs this run
    inside another one, and judges what it made there, takes it back.
    """

    def __init__(
        self, recipe: Recipe, options: RunOptions, console: Console, verb: str | None, inputs: Mapping[str, Path]
    ) -> None:
        self.recipe, self.options, self.console, self.verb, self.inputs = recipe, options, console, verb, inputs
        places = [i for i, s in enumerate(recipe.stages) if verb is None or s.kind == verb]
        if not places:
            kinds = ", ".join(dict.fromkeys(s.kind for s in recipe.stages))
            raise UserError(f"recipe {recipe.name} has no {verb} stage", why=f"its stages: {kinds}")
        self.begin, self.indices = asked_stages(recipe, places, options.chain)
        self.whole = self.indices[-1] == places[-1]
        self.last = recipe.stages[self.indices[-1]]
        self.needs = frozenset[str]().union(*(recipe.stages[i].needs() for i in self.indices))
        self.compresses = "teacher" in self.needs
        if self.compresses and not chain.asks_teacher(recipe, self.indices):
            self.needs -= {"teacher"}
        self.ready: dict[Path, Prepared] = {}
        self.experiment = experiment(options)
        self.method = recipe.method or self.last.kind
        self.parent: Parent | None = None
        self.tags: dict[str, str] = {}
        self.measures = True

    def _told_where(self) -> str:
        """Store and experiment; UserError for an address that cannot be one."""
        return f"{resolve_store(self.options.tracking_uri).shown} {self.experiment}"

    def _has_store(self) -> bool:
        """Whether the store that earlier runs were told to is still there, as far as that can be seen from here."""
        database = resolve_store(self.options.tracking_uri).database
        return database is None or database.exists()

    def _open_data(self) -> None:
        """Find what is wrong with the data before a folder is made or a step is computed."""
        if "data" in self.needs:
            self.table  # noqa: B018 - opened here, read by the stages
        if "corpus" in self.needs:
            self.corpus  # noqa: B018
        words_read(self.recipe, self.indices)

    def _fingerprints(self, teachers: Teachers) -> dict[str, str]:
        """What the run reads; a run goes on only while it is the same."""
        read = teachers.fingerprints()
        if self.recipe.model:
            read["model"] = modelfolder.fingerprint(resolve_model(self.recipe.model))
        for index in self.indices:
            own = getattr(getattr(self.recipe.stages[index], "student", None), "model", None)
            if own is not None:
                read[f"student of stage {index}"] = modelfolder.fingerprint(resolve_model(own))
        if "table" in self.__dict__:
            read["data"] = self.table.fingerprint
        if "corpus" in self.__dict__:
            read["corpus"] = self.corpus.fingerprint
        return read | words_read(self.recipe, self.indices)

    def _has_task(self) -> bool:
        return (
            self.last.kind not in ("tokenizer", "pretrain")
            and getattr(self.last, "level", "task_specific") == "task_specific"
        )

    def _quality(self) -> str:
        """The figure on the quality axis of the page's charts: the main metric of the task, where the run has one."""
        return f"quality/{task_choice(self.table)[0]}" if "table" in self.__dict__ else DEFAULT_QUALITY

    # --- data and teachers ------------------------------------------------------------------------------------

    @cached_property
    def table(self) -> Table:
        teacher = None
        rows = self.recipe.taught_by
        if rows and not is_recipe(rows[self.recipe.lead].model):
            teacher = modelfolder.inspect(teacher_folder(rows[self.recipe.lead].model))
        elif not rows and self.recipe.model and self.recipe.stages[self.indices[0]].kind not in chain.MAKERS:
            teacher = modelfolder.inspect(resolve_model(self.recipe.model))
        table = open_table_of(self.recipe, teacher)
        for note in table.notes:
            self.console.note(note)
        return table

    @cached_property
    def corpus(self) -> Corpus:
        corpus = open_corpus_of(self.recipe, lambda: self.table)
        for note in corpus.notes:
            self.console.note(note)
        return corpus

    def _teacher_rows(self) -> tuple[TeacherRow, ...]:
        """Who the recipe says teaches."""
        rows = self.recipe.taught_by
        if not rows:
            raise UserError(
                f"recipe {self.recipe.name} needs a teacher", where="--teacher",
                do="name a fine-tuned model's folder, or a teacher recipe such as 'teacher'",
            )  # fmt: skip
        return rows

    def _teacher_recipe(self, row: TeacherRow) -> Recipe | None:
        """The recipe that makes a teacher, on this run's data; None when the teacher is a folder."""
        if not is_recipe(row.model):
            return None
        seed = () if row.seed is None else (Override("seed", row.seed, f"the teacher's seed {row.seed}"),)
        return load_recipe(row.model, overrides=[*overrides(self.recipe, load_recipe(row.model)), *seed])

    def content_hash(self) -> str:
        """sha256 of recipe, data, corpus and this program's version: equal when the result would be equal."""
        parts = [compress.__version__, self.recipe.hash()]
        parts += [self.table.fingerprint] if self.recipe.data else []
        parts += [self.corpus.fingerprint] if self.recipe.corpus else []
        parts += words_read(self.recipe, self.indices).values()
        folders = [self.recipe.model, *(row.model for row in self.recipe.taught_by if not is_recipe(row.model))]
        parts += [modelfolder.fingerprint(resolve_model(name)) for name in folders if name]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

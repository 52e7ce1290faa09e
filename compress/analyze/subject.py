"""What an analysis looks at and what it finds: a model ready to be asked, its texts, tables and plots by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from compress.console import Console
from compress.contracts import Batch, Needs, RunOptions, Watch, unwatched
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples
from compress.data.tables.table import Table, spread_places
from compress.data.tasks import task_of
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.infer.prepare import PreparedModel, prepare
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel
from compress.predict.predictor import MAX_TOKENS
from compress.recipe import load_recipe
from compress.stages.prune_layers.study import not_finite
from compress.stages.shared.labelled_data import open_table_of

DEPTH = "layer; 0: embeddings"  # what plots have along the bottom
LONGEST = 128  # tokens of a text that are read
ALL = Needs(hidden_states=True)

Table2 = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""(columns, rows)."""


@dataclass
class Analysis:
    """What was found: tables and plots by file name, and lines. shown: of a table, how many rows the terminal has."""

    tables: dict[str, tuple[str, Table2]] = field(default_factory=dict)
    plots: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    shown: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A model that is looked at."""

    name: str
    loaded: LoadedModel
    prepared: PreparedModel
    tokenizer: Tokenizer
    watch: Watch = unwatched

    @property
    def layers(self) -> list[str]:
        """What its outputs are called."""
        return ["emb", *map(str, range(self.loaded.config.depth))]

    def states(self, examples: Examples) -> Iterator[tuple[Batch, Sequence[Tensor]]]:
        """(batch, its output (T, D) of the embeddings and of every layer) for each batch, the last after a final norm.

        Raises UserError for a layer whose output is not finite.
        """
        done = 0
        with self.watch(f"hidden states of {self.name}", len(examples), "rows") as progress:
            for batch in evaluation_batches(examples, MAX_TOKENS):
                yield batch, self.states_of(batch)
                done += batch.rows
                progress.update(done)

    def states_of(self, batch: Batch) -> Sequence[Tensor]:
        """The same of one batch."""
        device = self.loaded.model.encoder.embeddings.word.weight.device
        states = self.prepared(batch.to(device), ALL).hidden_states
        assert states is not None
        for place, state in enumerate(states):
            if not state.isfinite().all():
                raise not_finite(place - 1, str(self.loaded.path))
        return [state.cpu() for state in states]


def open_subject(folder: Path, name: str, options: RunOptions, watch: Watch = unwatched) -> Subject:
    """The model of a folder. name: what tables call it.  watch: shows how far its passes are.

    Raises UserError when its tokenizer does not fit.
    """
    loaded = modelfolder.load_model(folder, device=options.device)
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(folder))
    tokenizer.check_fits(loaded.config.vocabulary, where=str(folder))
    return Subject(name, loaded, prepare(loaded.model), tokenizer, watch)


def table_of(flag: str, source: str | None, subject: Subject, options: RunOptions, console: Console) -> Table:
    """The data that the options name, or another source."""
    overrides = [] if source is not None else options.overrides
    if source is None and not any(o.path == "data.source" for o in overrides):
        raise UserError("text data is required", where=flag, do="give a built-in dataset, a file or a folder")
    length = min(LONGEST, subject.loaded.config.max_positions)
    data = {"source": source or "given by --data", "max_length": length}
    recipe = load_recipe({"name": "analyze", "data": data, "stages": [_UNUSED]}, overrides)
    try:
        table = open_table_of(recipe)
    except UserError as error:
        raise error if source is None else _name_flag(error, f"{flag} {source}", source) from None
    for note in table.notes:
        console.note(note)
    return table


def _name_flag(error: UserError, flag: str, source: str) -> UserError:
    """The error about a source of data that has no flags for its columns."""
    where = flag if error.where in (None, source) else f"{flag}: {error.where}"
    do = error.do and re.sub(r"^name (it|them) with [^;]*", r"rename \1 in the data", error.do)
    return UserError(error.what, where=where, why=error.why, do=do, code=error.code)


_UNUSED = {"kind": "finetune", "training": {"steps": 1}}  # a recipe needs a stage; nothing is trained


def encode_split(subject: Subject, table: Table, split: str, rows: int) -> Examples:
    """Evenly spread rows of a split."""
    chosen = table.split(split)
    places = spread_places(len(chosen), rows)
    length = min(LONGEST, subject.loaded.config.max_positions)
    return task_of(table.task, table.settings).encode(subject.tokenizer, chosen.take(places), max_length=length)

"""What every kind of task is: how its columns and labels are read, encoded, answered and scored.

One file of `tasks/` is one kind; the class in it is `Task`, a subclass of `Task` here. Whatever is peculiar to a kind
is in its file: the rest of the code asks the task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import pyarrow as pa

from compress.data.batches.examples import Examples, encode_rows, encode_texts
from compress.data.batches.ragged import LabelArray
from compress.data.reading.columns import LABEL, RequestedColumns
from compress.data.reading.frame import Column, Frame
from compress.data.tables.label_order import Labels
from compress.data.tables.table import Rows
from compress.data.text import texts as texts_
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import HeadKind, Problem
from compress.errors import UserError, did_you_mean, printable
from evaluation.quality.churn import Group
from evaluation.quality.estimates import estimate_difference, estimate_metric
from evaluation.quality.intervals import Interval
from evaluation.quality.slices import Answers, Members

METRIC = "metric"
"""The setting that every kind has: which of its metrics decides."""
ERRORS = ("calibration_error",)
"""Metrics that are better when they are lower: none of them decides."""
Weighted = Callable[[np.ndarray], np.ndarray]
"""(R, N) numbers of draws of N rows → (R,) figures: what `evaluation.quality.intervals.bootstrap_rows` resamples."""


class Answer(Protocol):
    """What a model says of one text."""

    def line(self, text: str) -> str:
        """For people: one line of printable text that holds answer and text."""
        ...

    def as_json(self) -> dict[str, Any]:
        """For machines: what is beside the text."""
        ...


@dataclass(frozen=True)
class Choices:
    """What a person chose about reading labels. names: in the order of their ids.  expected: those of a model, whose
    order the table takes.  bad_tags: what happens to tags that their scheme does not allow.  bad_rows: to labels that
    do not fit their row."""

    names: Sequence[str] | None = None
    expected: Sequence[str] | None = None
    bad_tags: Literal["refuse", "repair"] = "refuse"
    bad_rows: Literal["refuse", "drop"] = "refuse"


@dataclass(frozen=True)
class ScoredAnswers:
    """A model's answers to N rows beside the gold ones.

    metrics: name → how it follows from the rows that are drawn, the one that decides first.  baselines: figures that
    no model is needed for.  right: (N,) bool, which rows were answered right, where the main metric is their share.
    undefined: metric → why these rows give no figure.  chance: metric → the score of the best constant answer.
    """

    rows: int
    metrics: Mapping[str, Weighted]
    baselines: Mapping[str, float] = field(default_factory=dict)
    right: np.ndarray | None = None
    undefined: Mapping[str, str] = field(default_factory=dict)
    chance: Mapping[str, float] = field(default_factory=dict)

    def value(self, metric: str) -> float:
        """The figure of all rows; NaN where it is undefined."""
        if metric not in self.metrics:
            return float("nan")
        return float(self.metrics[metric](np.ones((1, self.rows)))[0])

    def interval(self, metric: str, *, resamples: int, seed: int = 0) -> Interval:
        """With its 95 % interval (`evaluation.quality.estimates`). Raises ValueError where it is undefined."""
        return estimate_metric(self.rows, self.metrics[metric], resamples=resamples, seed=seed)

    def answers(self, metric: str) -> Answers:
        """What slices are made of: a metric that is defined, and which rows are right where it is their share."""
        main = next(iter(self.metrics), None) == metric
        return Answers(self.metrics[metric], self.right if main else None)

    def difference(self, other: ScoredAnswers, metric: str, *, resamples: int, seed: int = 0) -> Interval:
        """This model's figure minus the other's, paired row by row."""
        return estimate_difference(
            self.rows, self.metrics[metric], other.metrics[metric], resamples=resamples, seed=seed
        )


@dataclass(frozen=True)
class Fidelity:
    """How alike two models answer, whatever the labels say. figures: name → per draws of rows; shares are 0 to 1."""

    rows: int
    figures: Mapping[str, Weighted]
    values: Mapping[str, float] = field(default_factory=dict)


PAIR_EXAMPLE = '"some text" --pair "another text"'
"""What follows `compress predict MODEL` for a model of two texts."""


class Task(ABC):
    """One kind of task.

    kind: the name that data, recipes and model folders use.  aliases: what others call it.
    text_roles: the columns of text that it reads, in the order of --text-column and --text-pair-column; those in
    optional_roles may be missing.  usual: role → column names that data sets usually have, where the common names of
    text do not hold.  usual_labels: of the label column.  head: kind and problem of the encoder's head.
    metrics: what it is scored by, the usual main one first; of some kinds it depends on the labels: `list_metrics`.
    metric: the one that a person chose to decide; None: the usual one.
    settings: what a model of this kind must know, beside its labels, to answer as it was trained; the keywords of the
    constructor.  label_free: any text is its data, and a model with its head always does this task.  scores_of: of
    such a task, the kinds of data whose labels it is scored by.  pairs_answer: of rows without labels, second texts are
    taken as answers to the first; a model with its head always does this task.  asked_as: what its answers call the
    first text, and the second one; None: they do not repeat that.  names: of the labels, where all models of this kind
    have the same.
    example: what follows `compress predict MODEL`; with texts in pairs, `example_for`.
    """

    kind: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    text_roles: ClassVar[tuple[str, ...]] = ("text",)
    optional_roles: ClassVar[tuple[str, ...]] = ()
    usual: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    usual_labels: ClassVar[tuple[str, ...]] = LABEL
    head: ClassVar[tuple[HeadKind, Problem]] = ("classification", "single_label")
    metrics: ClassVar[tuple[str, ...]]
    metric: str | None = None
    settings: ClassVar[tuple[str, ...]] = ()
    label_free: ClassVar[bool] = False
    scores_of: ClassVar[tuple[str, ...]] = ()
    pairs_answer: ClassVar[bool] = False
    asked_as: ClassVar[tuple[str, str | None]] = ("text", "text_pair")
    names: ClassVar[tuple[str, ...]] = ()
    example: ClassVar[str] = '"some text"'

    def example_for(self, roles: Collection[str]) -> str:
        """What follows `compress predict MODEL` where the data has these roles."""
        optional = "text_pair" in self.optional_roles and self.example == Task.example and not self.label_free
        return PAIR_EXAMPLE if optional and "text_pair" in roles else self.example

    @property
    def ranks(self) -> bool:
        """Whether its models order the documents of a query."""
        return self.head == ("classification", "ranking")

    @property
    def needs_pair(self) -> bool:
        """Whether its models answer pairs of texts alone."""
        return self.ranks or (len(self.text_roles) == 2 and self.text_roles[1] not in self.optional_roles)

    def configure(self, settings: Mapping[str, Any]) -> Task:
        """This kind with these settings, or with another `metric`. Raises UserError for one that it does not have."""
        own = {name: value for name, value in settings.items() if name != METRIC}
        unknown = next((name for name in own if name not in self.settings), None)
        if unknown is not None:
            raise UserError(
                f"{self.kind} has no setting {unknown}",
                where=f"data.{unknown}",
                do="remove it, or set the task of the data",
            )
        if not settings:
            return self
        made = type(self)(**own)
        made.metric = settings.get(METRIC)
        return made

    def settings_of(self, train: Rows | None, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings of a model that is trained on these rows. asked: those that a person chose."""
        return dict(asked)

    # --- reading ----------------------------------------------------------------------------------------------

    def metric_of(self, rows: Rows) -> str | None:
        """The metric that decides on such rows, where that depends on what they hold; None: it does not."""
        return None

    def is_search(self, rows: Rows) -> bool:
        """Whether each row is a query, and which documents it finds is known by their texts."""
        return False

    def check_columns(self, frame: Frame, roles: Mapping[str, str], where: str) -> None:  # noqa: B027 - most kinds
        """Raise UserError for columns that this kind would misread."""

    @abstractmethod
    def claims(self, frame: Frame, asked: RequestedColumns) -> int:
        """How much the columns look like this kind: 0 not at all; the highest claim wins."""

    def read_text(self, role: str, column: Column, where: str) -> tuple[pa.ChunkedArray, np.ndarray]:
        """(values, (N,) bool: rows that lack one) of a text column. Raises UserError for what is no text."""
        return texts_.read_text(column, where)

    def read_plain_text(self, role: str, column: Column, where: str) -> tuple[pa.ChunkedArray, np.ndarray]:
        """As `read_text`, of rows without labels, which may also be plain text where this kind reads words."""
        return self.read_text(role, column, where)

    def label_column(self, frame: Frame, roles: Mapping[str, str]) -> Column:
        """What `read_labels` is given of one split: the column of the labels, where no other belongs to it."""
        return frame.columns[roles["label"]]

    @abstractmethod
    def read_labels(self, columns: Mapping[str, Column], where: str, choices: Choices) -> Labels:
        """The label columns of all labelled splits as this kind holds labels. Raises UserError for what is wrong."""

    @abstractmethod
    def make_missing_labels(
        self, columns: Mapping[str, pa.ChunkedArray], rows: int, names: Sequence[str]
    ) -> LabelArray:
        """The labels of `rows` rows that have none."""

    @abstractmethod
    def find_unlabelled(self, labels: LabelArray) -> np.ndarray:
        """(N,) bool: rows that should have a label and have none."""

    def arrange(self, splits: Mapping[str, Rows], where: str, bad_rows: str, notes: list[str]) -> Mapping[str, Rows]:
        """All splits as this kind holds them, where that is otherwise than a row of the source each. bad_rows: "refuse"
        or "drop" what cannot be used. Raises UserError."""
        return splits

    def misfits(self, rows: Rows) -> Mapping[str, np.ndarray]:
        """What is wrong between the columns of a row: `with …` → (N,) bool of the rows."""
        return {}

    def count_outputs(self, names: Sequence[str]) -> int:
        """Outputs of the head for these labels."""
        return len(names)

    def first_guess(self, labels: LabelArray) -> np.ndarray | None:
        """(C,) what a new head should answer before it has learned anything, as its bias; None: nothing.

        A bias moves by no more than the learning rate a step: far from the answers, most of a short training would go
        into the way there.
        """
        return None

    # --- encoding ---------------------------------------------------------------------------------------------

    def encode(self, tokenizer: Tokenizer, rows: Rows, *, max_length: int) -> Examples:
        """Rows of a table with their labels; a row without one keeps UNLABELLED (NaN where labels are numbers)."""
        return encode_rows(tokenizer, rows, max_length=max_length)

    def count_examples(self, rows: Rows) -> int:
        """How many examples `encode` makes of them, but for long texts that become several."""
        return len(rows)

    def count_rows(self, rows: Rows, examples: int) -> int:
        """How many of the rows are studied where so many examples would do."""
        return min(examples, len(rows))

    def encode_taught(self, examples: Examples, rows: Rows) -> np.ndarray:
        """(N, C) logits, or vectors, of the examples that `encode` made of rows with teacher values; (T, C) of tagged
        words."""
        assert isinstance(rows.taught, np.ndarray)
        assert len(examples) == len(rows)
        return rows.taught

    def encode_texts(
        self, tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
    ) -> Examples:
        """Raw texts, without labels. Raises UserError when a second text is given or missing against the task."""
        self.check_texts(pairs)
        return encode_texts(tokenizer, texts, pairs, max_length=max_length)

    def check_texts(self, pairs: Sequence[str] | None) -> None:
        """Raise UserError when second texts are given or missing against the task."""
        reads = "text_pair" in self.text_roles
        if pairs is None and reads and "text_pair" not in self.optional_roles:
            needs, found = "pairs of texts", "single texts"
        elif pairs is not None and not reads:
            needs, found = "single texts", "pairs of texts"
        else:
            return
        raise UserError(f"a model for {self.kind} needs {needs}", why="found " + found)

    # --- answering and scoring --------------------------------------------------------------------------------

    @abstractmethod
    def decode(
        self,
        logits: np.ndarray,
        label_names: Sequence[str],
        examples: Examples,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
    ) -> Sequence[Answer]:
        """The head's output, (N, C), or (T, C) of a head on every token, → one answer for each of the `texts`.

        pairs: the second texts, of tasks that read two.

        Raises UserError when C is not the number of names or an output is not finite.
        """

    def list_metrics(self, names: Sequence[str]) -> tuple[str, ...]:
        """The metrics for these labels, the usual main one first."""
        return self.metrics

    def choose_metrics(self, names: Sequence[str]) -> tuple[str, ...]:
        """The metrics for these labels, the one that decides first. Raises UserError where the one that a person chose
        is none of them, or is better when it is lower."""
        every = self.list_metrics(names)
        if self.metric is None:
            return every
        able = [name for name in every if name not in ERRORS]
        if self.metric not in able:
            of = f"{self.kind} with {len(names)} labels" if names else self.kind
            what = f"{of} has no metric '{printable(str(self.metric), 60)}'"
            raise UserError(what, where="data.metric", do=did_you_mean(str(self.metric), able))
        return (self.metric, *(name for name in every if name != self.metric))

    @abstractmethod
    def score(self, logits: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows) -> ScoredAnswers:
        """The head's output for labelled rows beside their labels."""

    def score_against(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> ScoredAnswers:
        """As `score`; of rows without labels, by the parent's outputs `theirs`, where a kind can be scored by them."""
        return self.score(ours, label_names, examples, rows)

    @abstractmethod
    def compare(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Fidelity:
        """The outputs of two models for the same rows."""

    def has_baseline(self, rows: Rows) -> bool:
        """Whether `answer_by_baseline` answers such rows."""
        return type(self).answer_by_baseline is not Task.answer_by_baseline

    def answer_by_baseline(
        self, train: Rows, rows: Rows, label_names: Sequence[str]
    ) -> tuple[str, ScoredAnswers] | None:
        """(a baseline of `data.text.baselines`, its answers to labelled rows), learned from the training rows, all of
        which have labels; None where this kind has none."""
        return None

    def churn(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Sequence[Group]:
        """Which rows the first model answers otherwise than the second; nothing for kinds without one label a row."""
        return ()

    def groups(self, rows: Rows, label_names: Sequence[str]) -> Sequence[Members]:
        """What the right answers tell rows apart by; a row may be in several groups. Nothing for kinds without any."""
        return ()


def check_outputs(logits: np.ndarray, outputs: int, what: str = "names") -> None:
    """Raise UserError unless the output has `outputs` columns and is finite."""
    if logits.ndim != 2 or logits.shape[1] != outputs:
        raise UserError(
            "the model's outputs do not match its labels", why=f"{logits.shape[-1]} logits per row, {outputs} {what}"
        )
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(1))[0])
        raise UserError("the model's output contains NaN or infinity", where=f"row {row + 1}", do="check its weights")

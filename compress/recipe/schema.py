"""What a recipe is: frozen, strict blocks. Messages are made in `explain.py`, from what is declared here."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from compress.contracts import Frozen, ListOf
from compress.contracts.recipe import MOST
from compress.recipe.document import is_text
from compress.recipe.renames import as_before
from compress.registry import RowOf, parts

HASH_VERSION = "recipe-1"
"""Part of every hash: raised when equal recipes no longer give equal results."""

PROSE = ("name", "description", "method", "paper", "prerequisites", "expected", "experimental")
"""Fields that tell people something and change no result."""

LATER = (
    "labelled_rows", "unlabelled", "unlabelled_rows", "pool", "pool_rows", "pool_by", "teacher_columns",
    "teacher_values", "teacher_noise", "allow_overlap",
)  # fmt: skip
"""Keys of `data` that came later than many a hash: they count where they have a value."""

MAX_RUNS = 200
"""Of one sweep."""

Text = Annotated[str, Field(min_length=1)]


class DataSpec(Frozen):
    """Labelled rows. Values that are null are inferred from the data and printed."""

    source: Text
    """An embedded set, a file or folder (jsonl, csv, parquet, arrow; also `s3://BUCKET/KEY`), or `hf:name[/config]`."""
    task: Text | None = None
    """Task kind: a file of compress/data/tasks, written with dashes."""
    text_column: Text | None = None
    """Column of the text, or of the first text of a pair."""
    text_pair_column: Text | None = None
    """Column of the second text of a pair."""
    label_column: Text | None = None
    """Column of the label."""
    train_split: Text | None = None
    """Name of the split to train on."""
    validation_split: Text | None = None
    """Name of the split that selects the best weights."""
    test_split: Text | None = None
    """Name of the split for the final evaluation."""
    unlabelled_split: Text | None = None
    """Name of the split without labels; only a teacher can label it."""
    labels: ListOf[Text] | None = None
    """Label names, in the order of their ids."""
    limit: int | None = Field(default=None, gt=0, le=MOST)
    """Maximum number of rows of each split. Default: all rows."""
    labelled_rows: int | None = Field(default=None, gt=0, le=MOST)
    """Number of training rows whose labels are used, chosen at random and the same for every seed. The other training
    rows join the unlabelled split, without their labels. Default: all rows."""
    unlabelled: Text | None = None
    """Text without labels, which the teacher labels: a file or folder (lines of text, jsonl, csv, parquet, arrow), or
    `hf:name[/config]`, with the text columns of the task. Its rows join the unlabelled split."""
    unlabelled_rows: int | None = Field(default=None, ge=0, le=MOST)
    """Maximum number of unlabelled rows to train on, drawn at random. 0: none. Default: all rows."""
    pool: Text | None = None
    """Large plain text, named like a corpus, from which the passages nearest to the training rows are taken as rows
    without labels. For tasks on single texts."""
    pool_rows: int | None = Field(default=None, gt=0, le=MOST)
    """Number of rows to take from the pool. Default: ten for each training row, at least 1,000 and at most 100,000."""
    pool_by: Literal["words", "vectors"] | None = None
    """What passages of the pool are compared by. words: the words that they share with a training row, rare ones count
    more.  vectors: the vectors of the teacher, of the model itself in commands without a teacher; the model reads the
    whole pool once.  Default: words."""
    teacher_columns: ListOf[Text] | None = None
    """Columns in which a teacher labelled the rows of the training split, the unlabelled split and `unlabelled`: one
    column with a value for each class, one column per class, or one column per annotator. The student learns from them
    and no teacher model is needed. A row without values teaches its own label."""
    teacher_values: Literal["probabilities", "logits", "scores", "labels"] | None = None
    """What the teacher columns hold. scores: of a regression task.  labels: names or ids.  Default: inferred."""
    teacher_noise: float | None = Field(default=None, ge=0, lt=1)
    """For teacher columns with labels: the share of them that is wrong. The student learns the label with probability 1
    minus this, the other classes share the rest. Default: 0."""
    allow_overlap: bool = False
    """Also train on unlabelled rows whose text is in the validation or test split. Default: they are left out."""
    max_length: int = Field(default=128, ge=3, le=1_000_000)
    """Maximum sequence length in tokens, including [CLS] and [SEP]; longer texts are truncated."""
    bad_rows: Literal["refuse", "drop"] = "refuse"
    """What to do with rows without text or label, or with different numbers of words and tags."""
    bad_tags: Literal["refuse", "repair"] = "refuse"
    """What to do with tags that are not valid in their scheme, such as I- without a B- before it."""
    metric: Text | None = None
    """Main metric: it selects the best weights, and bounds in points and comparisons of runs refer to it. Default: the
    model's own, else the usual metric of the task."""
    long_text: Literal["cut", "chunk"] | None = None
    """Classification of texts longer than max_length. cut: truncate them.  chunk: split them into chunks and pool the
    chunk logits. Default: cut."""
    pooling: Literal["mean", "max"] | None = None
    """How chunk logits are pooled. Default: mean."""
    stride: int | None = Field(default=None, ge=0)
    """Overlap, in tokens, of neighbouring windows of a long context (question answering) or chunks of a long text.
    Default: a third of max_length."""
    no_answer_threshold: float | None = None
    """Question answering: margin by which "no answer" must exceed the best span. Default: 0."""

    @property
    def adds_text(self) -> bool:
        """Whether it names text beside the labelled data."""
        return self.unlabelled is not None or self.pool is not None

    @model_validator(mode="after")
    def _pool(self) -> DataSpec:
        lonely = next((key for key in ("pool_rows", "pool_by") if getattr(self, key) is not None), None)
        if lonely is not None and self.pool is None:
            raise ValueError(f"{lonely} has no effect without pool; name a text with pool, or remove it")
        return self

    @field_validator("task")
    @classmethod
    def _task(cls, task: str | None) -> str | None:
        known = [kind.replace("_", "-") for kind in parts("compress.data.tasks")]
        if task is not None and task not in known:
            raise PydanticCustomError("unknown_name", "unknown task", {"known": known})
        return task


class CorpusSpec(Frozen):
    """Plain text, for the tokenizer and for stages that mask."""

    source: Text
    """An embedded corpus, a text or table file, a folder, `s3://BUCKET/KEY`, or `hf:name[/config]`."""
    text_column: Text | None = None
    """Column of the text, if the source is a table."""
    limit: int | None = Field(default=None, gt=0, le=MOST)
    """Maximum number of documents. Default: all documents."""
    max_length: int = Field(default=128, ge=3, le=1_000_000)
    """Length of one training block in tokens."""
    stream: bool | None = None
    """Read the text from its files when needed and keep its tokens on disk. Default: for 512 MB of text or more."""
    task_texts: bool = False
    """Also read the training texts of `data` (task-adaptive pretraining, arXiv 2004.10964)."""


class TeacherRow(Frozen):
    """One of several teachers."""

    model: Text
    """A model folder, or the name of a recipe that makes one."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of this teacher in the mean, relative to the other teachers."""
    layers: bool = False
    """Objectives that compare layers use this teacher, and the student is initialized from it. Default: the first
    teacher of the list."""
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    """Seed with which a teacher recipe runs. Default: the seed of that recipe."""


class LatencySpec(Frozen):
    """How latency is measured, all models in turn."""

    batch: int = Field(default=1, gt=0, le=4096)
    """Batch size: sequences per call."""
    length: int | None = Field(default=None, ge=3, le=1_000_000)
    """Sequence length in tokens. null: latency is measured on texts of the split, tokenization included, as in
    `compress evaluate`; stages that measure latency use 128 tokens."""
    warmup: int = Field(default=5, ge=0, le=10_000)
    """Warm-up rounds, not measured."""
    repeats: int = Field(default=50, ge=5, le=100_000)
    """Measured rounds."""
    seconds: float = Field(default=10.0, gt=0, le=3600)
    """Time limit in seconds: stop before `repeats` rounds when it is reached."""

    @property
    def tokens(self) -> int:
        """Of the sequences that stages are timed on."""
        return 128 if self.length is None else self.length

    def dump_for_hash(self) -> dict[str, Any]:
        """What the result of a stage depends on; JSON."""
        return {**self.model_dump(mode="json"), "length": self.tokens}


class EvaluationSpec(Frozen):
    """How the models of a run are measured."""

    split: Literal["test", "validation"] = "test"
    """Split on which the models are evaluated."""
    bootstrap: int = Field(default=1000, ge=100, le=100_000)
    """Bootstrap resamples for the 95 % confidence intervals."""
    latency: LatencySpec = LatencySpec()
    throughput_rows: int = Field(default=512, gt=0, le=10_000_000)
    """Number of real rows, with their mix of lengths, on which throughput is measured; fewer if they have more than
    64 tokens on average."""
    group_column: Text | None = None
    """Column whose groups are compared with each other: the metric of each, and the largest gap. Default: none."""

    @model_serializer(mode="wrap")
    def _without_unset_column(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The key is newer than many a recipe: hashes of those without it stay as they were."""
        return {key: value for key, value in handler(self).items() if key != "group_column" or value is not None}


class Recipe(Frozen):
    """A whole run: what to read, what to do in which order, how to measure it."""

    name: Text
    """Name of the recipe, of its run folder and of its MLflow runs."""
    description: str = ""
    """What the recipe does, in one line."""
    method: str = ""
    """Method tag (and colour) of its MLflow runs, such as distill."""
    paper: str | None = None
    """Publication of the method."""
    prerequisites: str | None = None
    """What must exist before it runs."""
    expected: Any = None
    """Expected results and where they were measured: text or a mapping."""
    experimental: bool = False
    """No measurement has shown a gain yet: the list of recipes shows it last, and a run prints a note."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Random seed of data order, masking and new weights."""
    model: Text | None = None
    """Model folder that the first stage starts from, if it starts from a model."""
    teachers: ListOf[TeacherRow] | None = None
    """Several teachers of a task, instead of `teacher`: the student learns from the mean of their outputs."""
    combine: Literal["logits", "probabilities"] | None = None
    """What is averaged over several teachers. logits: arXiv 1312.6184.  probabilities: at temperature 1; objectives
    soften the mean. Default: logits."""
    teacher: Text | None = None
    """Teacher: a model folder, or the name of a recipe that makes one. The recipe runs once and its result is reused by
    hash."""
    data: DataSpec | None = None
    """Labelled rows."""
    corpus: CorpusSpec | None = None
    """Unlabelled plain text."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """How the models of the run are measured."""
    sweep: dict[Text, ListOf[Any]] | None = None
    """Grid of values: key paths of this recipe and the values of each. One run per combination, compared at the end."""
    stages: Annotated[tuple[Annotated[Any, RowOf()], ...], Field(strict=False, min_length=1, max_length=100)]
    """Stages in order; each one continues with the model of the stage before."""

    @model_validator(mode="after")
    def _blocks(self) -> Recipe:
        """What a stage reads must be there, except a model or teacher, which a person may bring on the command line."""
        if self.corpus is not None and self.corpus.task_texts and self.data is None:
            raise ValueError("corpus.task_texts reads the texts of `data`, which is missing; add `data:`")
        for index, stage in enumerate(self.stages):
            for block in sorted(stage.needs() - {"teacher", "model"}):
                if getattr(self, block) is None:
                    raise PydanticCustomError(
                        "missing_block", "missing block", {"key": block, "stage": index, "kind": stage.kind}
                    )
        return self

    @field_validator("teachers")
    @classmethod
    def _teachers(cls, rows: tuple[TeacherRow, ...] | None) -> tuple[TeacherRow, ...] | None:
        if rows is None:
            return None
        if len(rows) < 2:
            raise ValueError(f"found {len(rows)}; list two or more teachers, or set `teacher` for a single one")
        named = [(row.model, row.seed) for row in rows]
        for name in named:
            if named.count(name) > 1:
                raise ValueError(f"'{name[0]}' is listed twice; give it a larger weight instead")
        if sum(row.layers for row in rows) > 1:
            raise ValueError("layers: true is set for several teachers; set it for one of them")
        return rows

    @field_validator("sweep")
    @classmethod
    def _sweep(cls, sweep: dict[str, tuple[Any, ...]] | None) -> dict[str, tuple[Any, ...]] | None:
        empty = [path for path, values in (sweep or {}).items() if not values]
        if sweep is not None and (empty or not sweep):
            raise ValueError(f"{empty[0] if empty else 'sweep'} has no values; add values or remove it")
        runs = math.prod(len(values) for values in (sweep or {}).values())
        if runs > MAX_RUNS:
            raise ValueError(f"{runs:,} combinations, allowed: at most {MAX_RUNS}")
        return sweep

    @field_validator("combine")
    @classmethod
    def _combine(cls, combine: str | None, info: ValidationInfo) -> str | None:
        if combine is not None and info.data.get("teachers") is None and "teachers" in info.data:
            raise ValueError("combine needs several teachers; remove it, or set `teachers`")
        return combine

    @field_validator("teacher")
    @classmethod
    def _teacher(cls, teacher: str | None, info: ValidationInfo) -> str | None:
        if teacher is not None and info.data.get("teachers"):
            raise ValueError(
                f"teacher ('{teacher}') and teachers are both set; give --teacher twice or more, or set teachers to "
                "null"
            )
        return teacher

    @property
    def has_column_teacher(self) -> bool:
        """Whether columns of the data teach and no model does."""
        return self.data is not None and self.data.teacher_columns is not None and not self.taught_by

    @property
    def taught_by(self) -> tuple[TeacherRow, ...]:
        """Whoever teaches: none, one or several."""
        return self.teachers or ((TeacherRow(model=self.teacher),) if self.teacher is not None else ())

    @property
    def lead(self) -> int:
        """The place in `taught_by` of the teacher whose layers, labels and weights count."""
        return next((i for i, row in enumerate(self.taught_by) if row.layers), 0)

    def hash(self) -> str:
        """sha256 of everything that can change a result (prose does not)."""
        left_out = {**dict.fromkeys((*PROSE, *self._unsaid()), True), **self._unsaid_data()}
        dumped = self.model_dump(mode="json", exclude=left_out)
        dumped["evaluation"]["latency"] = self.evaluation.latency.dump_for_hash()
        return _digest([HASH_VERSION, as_before(dumped)])

    def _unsaid(self) -> set[str]:
        """Keys about several teachers, where there are none: they came later than many a hash."""
        return (set() if self.teachers else {"teachers", "combine"}) | (set() if self.sweep else {"sweep"})

    def _unsaid_data(self) -> dict[str, Any]:
        """Keys of the data that came later than many a hash, where they have no value."""
        if self.data is None:
            return {}
        values = {name: getattr(self.data, name) for name in LATER}
        unsaid = {name for name, value in values.items() if value is None or value is False}
        return {"data": unsaid} if unsaid else {}

    def dump_yaml(self) -> str:
        """The resolved recipe, every default spelled out; loading it gives an equal recipe."""
        return dump(self.model_dump(mode="json"))


def json_schema() -> dict[str, Any]:
    """JSON schema of a recipe file, for editors: all stages and parts that are installed, and `extends`."""
    schema = Recipe.model_json_schema()
    extends = {"type": "string", "description": "The recipe to start from: a name or a path."}
    schema["properties"] = {"extends": extends, **schema["properties"]}
    # A recipe that extends another may change its stages by their positions, and leave out what that one says.
    changes = {"type": "object", "propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": {"type": "object"}}
    schema["properties"]["stages"] = {"anyOf": [schema["properties"]["stages"], changes]}
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["extends"]}]
    return schema


def _digest(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def dump(data: Any) -> str:
    """YAML that `document.parse` reads back equal."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """Quoted where our reader would take it for a number (PyYAML itself quotes what YAML 1.1 would), and escaped
        where a reader would take a character for a line break."""
        style = None if is_text(text) else "'"
        if not text.replace("\n", "").isprintable():
            style = '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)

"""What a recipe is: frozen, strict blocks. Messages are made in `explain.py`, from what is declared here."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from compress.contracts import Frozen, ListOf, StageSpec
from compress.recipe.document import is_text
from compress.recipe.renames import as_before
from compress.registry import RowOf, parts

HASH_VERSION = "recipe-1"
"""Part of every hash: raised when equal recipes no longer give equal results."""

PROSE = ("name", "description", "method", "paper", "prerequisites", "expected", "experimental")
"""Fields that tell people something and change no result."""

MAX_RUNS = 200
"""Of one sweep."""

Text = Annotated[str, Field(min_length=1)]


class DataSpec(Frozen):
    """Labelled rows. What is null is inferred from the data and printed."""

    source: Text
    """An embedded set, a file or folder (jsonl, csv, parquet, arrow), or `hf:name[/config]`."""
    task: Text | None = None
    """A file of compress/data/tasks, with dashes."""
    text_column: Text | None = None
    """Column of the text, or of the first of two."""
    text_pair_column: Text | None = None
    """Column of the second text of a pair."""
    label_column: Text | None = None
    """Column of the label."""
    train_split: Text | None = None
    """Name of the split to train on."""
    validation_split: Text | None = None
    """Name of the split that chooses the best weights."""
    test_split: Text | None = None
    """Name of the split that is measured at the end."""
    unlabelled_split: Text | None = None
    """Rows without labels, which only a teacher can label."""
    labels: ListOf[Text] | None = None
    """Label names in the order of their ids."""
    limit: int | None = Field(default=None, gt=0)
    """Most rows taken of each split."""
    max_length: int = Field(default=128, ge=3, le=1_000_000)
    """Most pieces of one text, [CLS] and [SEP] included; longer ones are cut."""
    bad_rows: Literal["refuse", "drop"] = "refuse"
    """Rows without text or label, or whose words and tags differ in number."""
    bad_tags: Literal["refuse", "repair"] = "refuse"
    """Tags that their scheme does not allow where they stand, such as I- with no B- before it."""
    metric: Text | None = None
    """What decides: which weights are kept, what a bound on points is of, what runs are compared by; null: that of the
    model, else the usual one of the task."""
    long_text: Literal["cut", "chunk"] | None = None
    """Of classification: chunk: a longer text is read in several chunks, whose logits are pooled; null: cut."""
    pooling: Literal["mean", "max"] | None = None
    """Of the logits of a text's chunks; null: mean."""
    stride: int | None = Field(default=None, ge=0)
    """Pieces that neighbouring windows of a long context (question answering) or chunks of a long text share; null: a
    third of max_length."""
    no_answer_threshold: float | None = None
    """Of question answering: by how much "no answer" must beat the best answer to be given; null: 0."""

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
    """An embedded corpus, a text or table file, a folder, or `hf:name[/config]`."""
    text_column: Text | None = None
    """Column of the text, where the source is a table."""
    limit: int | None = Field(default=None, gt=0)
    """Most documents taken."""
    max_length: int = Field(default=128, ge=3, le=1_000_000)
    """Pieces of one training block."""
    stream: bool | None = None
    """Read the text from its files as it is needed and keep its tokens on the disk; null: from 512 MB of text on."""
    task_texts: bool = False
    """Also read the training texts of `data`: what the task is about, in its own words (2004.10964)."""


class TeacherRow(Frozen):
    """One of several teachers."""

    model: Text
    """A model folder, or the name of a recipe that makes one."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the answer, beside the weights of the others."""
    layers: bool = False
    """Objectives that look inside a teacher read this one, and the student starts from it; else the first."""
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    """Of a recipe: make the teacher with this seed; null: with its own."""


class LatencySpec(Frozen):
    """How latency is timed: batches of full rows, all models in turn."""

    batch: int = Field(default=1, gt=0, le=4096)
    """Sequences at once."""
    length: int = Field(default=128, ge=3, le=1_000_000)
    """Tokens of each."""
    warmup: int = Field(default=5, ge=0, le=10_000)
    """Rounds before the first that counts."""
    repeats: int = Field(default=50, ge=5, le=100_000)
    """Rounds that count."""
    seconds: float = Field(default=10.0, gt=0, le=3600)
    """Stop earlier than `repeats` after this long."""


class EvaluationSpec(Frozen):
    """How the models of a run are measured."""

    split: Literal["test", "validation"] = "test"
    """Rows that the models are scored on."""
    bootstrap: int = Field(default=1000, ge=100, le=100_000)
    """Resamples for the 95 % intervals."""
    latency: LatencySpec = LatencySpec()
    throughput_rows: int = Field(default=512, gt=0, le=10_000_000)
    """Real rows, with their mix of lengths, that throughput is timed on."""


class Recipe(Frozen):
    """A whole run: what to read, what to do in which order, how to measure it."""

    name: Text
    """Of the recipe, of its run's folder and of its runs in MLflow."""
    description: str = ""
    """What it does, in one line."""
    method: str = ""
    """Colour and tag of its runs in MLflow, e.g. distill."""
    paper: str | None = None
    """Where the method was published."""
    prerequisites: str | None = None
    """What must be there before it runs."""
    expected: Any = None
    """The figures that a run reached, and on what: text or a mapping."""
    experimental: bool = False
    """Whether no measurement has shown a gain yet: the list of recipes shows it last, and a run says so."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of data order, masking and new weights."""
    model: Text | None = None
    """The model folder that the first stage starts from, where it starts from one."""
    teachers: ListOf[TeacherRow] | None = None
    """Several that teach a task together, in place of `teacher`: the student learns from the mean of their answers."""
    combine: Literal["logits", "probabilities"] | None = None
    """What the mean of several teachers is of; null: logits (1312.6184). probabilities: at temperature 1; objectives
    soften their mean."""
    teacher: Text | None = None
    """A model folder, or the name of a recipe that makes one: it runs once and is reused by its hash."""
    data: DataSpec | None = None
    """Labelled rows."""
    corpus: CorpusSpec | None = None
    """Plain text."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """How the models of the run are measured."""
    sweep: dict[Text, ListOf[Any]] | None = None
    """Paths of this recipe and the values that each takes: one run for every combination, compared at the end."""
    stages: Annotated[tuple[Annotated[Any, RowOf()], ...], Field(strict=False, min_length=1, max_length=100)]
    """What is done, in this order: each stage goes on with the model of the one before."""

    @model_validator(mode="after")
    def _blocks(self) -> Recipe:
        """What a stage reads must be there, except a model or teacher, which a person may bring on the command line."""
        if self.corpus is not None and self.corpus.task_texts and self.data is None:
            raise ValueError("corpus.task_texts reads the texts of `data`, and there is none; name it")
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
            raise ValueError(f"{len(rows) or 'no'} teacher is named; name two or more, or one as `teacher`")
        named = [(row.model, row.seed) for row in rows]
        for name in named:
            if named.count(name) > 1:
                raise ValueError(f"'{name[0]}' is named twice; give it a larger weight instead")
        if sum(row.layers for row in rows) > 1:
            raise ValueError("the layers of one teacher are compared; set layers: true on one row alone")
        return rows

    @field_validator("sweep")
    @classmethod
    def _sweep(cls, sweep: dict[str, tuple[Any, ...]] | None) -> dict[str, tuple[Any, ...]] | None:
        empty = [path for path, values in (sweep or {}).items() if not values]
        if sweep is not None and (empty or not sweep):
            raise ValueError(f"{empty[0] if empty else 'sweep'} has no values; name some, or leave it out")
        runs = math.prod(len(values) for values in (sweep or {}).values())
        if runs > MAX_RUNS:
            raise ValueError(f"{runs:,} combinations; at most {MAX_RUNS} are run")
        return sweep

    @field_validator("combine")
    @classmethod
    def _combine(cls, combine: str | None, info: ValidationInfo) -> str | None:
        if combine is not None and info.data.get("teachers") is None and "teachers" in info.data:
            raise ValueError("one teacher's answers are not combined; leave it out, or name several `teachers`")
        return combine

    @field_validator("teacher")
    @classmethod
    def _teacher(cls, teacher: str | None, info: ValidationInfo) -> str | None:
        if teacher is not None and info.data.get("teachers"):
            raise ValueError(
                f"one teacher is named ('{teacher}') where the recipe takes several; give --teacher twice or more, or "
                "set teachers to null"
            )
        return teacher

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
        return _digest([HASH_VERSION, as_before(self.model_dump(mode="json", exclude={*PROSE, *self._unsaid()}))])

    def _unsaid(self) -> set[str]:
        """Keys about several teachers, where there are none: they came later than many a hash."""
        return (set() if self.teachers else {"teachers", "combine"}) | (set() if self.sweep else {"sweep"})

    def stage_hash(self, index: int) -> str:
        """sha256 of everything that can change the output of stage `index`: it, those before it, and what they read.

        A teacher recipe or a model folder counts by its name here; the caller mixes in what stands behind the name.
        """
        done: list[StageSpec] = list(self.stages[: index + 1])
        blocks = frozenset({"model"}).union(*(stage.needs() for stage in done))
        blocks |= {"teachers", "combine"} - self._unsaid() if "teacher" in blocks else set()
        return _digest(
            [
                HASH_VERSION,
                self.model_dump(mode="json", include={"seed", *blocks}),
                [as_before(stage.model_dump(mode="json"), stage.kind) for stage in done],
            ]
        )

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

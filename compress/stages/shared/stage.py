"""What every kind of stage agrees on: what a stage is given, what it prepares, and what it returns.

A stage turns model folders into a model folder. `prepare` builds the student, the data and what to minimise; the
training loop runs; `finish` says what to write. The pipeline drives all stages alike, so each can be resumed, cached
and started from a folder of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import nn

from compress.contracts import BatchSource, TrainingPlan, Watch, unwatched
from compress.data.reading.corpus import Corpus
from compress.data.tables.table import Table
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.ensemble import Ensemble
from compress.modelfolder.folder import FolderMeta
from compress.recipe import Recipe
from compress.stages.shared.model_shape import ModelShape
from compress.tracking import TrackedRun
from compress.training.length import choose_length
from compress.training.schedule import total_steps

FINDINGS = "findings.json"
"""What was found while a stage was trained, in its folder: a table as MLflow shows it."""
LABELLED, TAUGHT = "labelled", "teacher_labelled"
"""Training rows that have a label of their own, and those that only the teacher labels."""
HELD_OUT = "held_out"
"""Rows without labels that are not trained on: they tell when to stop."""
TEACHER_RIGHT, TEACHER_CONFIDENT, TEACHER_NOISE = "teacher_right", "teacher_confident", "teacher_contradicts"
"""Of the labelled training rows, shares: the teacher gives their label; its probability for any label is above 95 %;
both above 95 % and another label, which is how many labels are wrong at least."""
FINDING_COLUMNS = ("step", "check", "finding", "do")


@dataclass(frozen=True)
class StageContext:
    """What a stage may read.

    folder: the stage's work folder.  model, tokenizer: folders from an earlier stage or a flag.  teacher: the folder
    whose task head teaches; general_teacher: the one whose masked-LM head teaches.  ensemble: who teaches a task
    together, `teacher` among them as their lead; None: `teacher` alone.  table, corpus: opened on first use.  workshop:
    for long work while a stage is prepared.  opened: the table where it is open already.  show: (title, columns, rows)
    of a table to the terminal.
    """

    recipe: Recipe
    folder: Path
    seed: int
    device: str
    precision: Literal["fp32", "bf16"]
    table: Callable[[], Table]
    corpus: Callable[[], Corpus]
    model: Path | None = None
    tokenizer: Path | None = None
    teacher: Path | None = None
    general_teacher: Path | None = None
    ensemble: Ensemble | None = None
    say: Callable[[str], None] = lambda _: None
    opened: Callable[[], Table | None] = lambda: None
    workshop: StageServices = field(default_factory=lambda: StageServices(unwatched, lambda: None))
    show: Callable[[str, Sequence[str], Sequence[Sequence[object]]], None] = lambda title, columns, rows: None


@dataclass
class StageOutput:
    """What to write as the stage's model folder: a model with its meta, or bare files (a tokenizer).

    files: of the tokenizer.  beside: other files of the model's folder, by name.
    """

    model: Model | None
    files: Mapping[str, bytes]
    meta: FolderMeta | None = None
    beside: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class SharedParts:
    """Work before the first step that several processes can share, part by part (`SharingStage`).

    noun: a part, for people.  place: where they are made, for all.  list_missing: names of the parts that are not there
    yet.  make: makes them all in this process.  hand_over: writes what other processes need to make them into a folder.
    """

    noun: str
    place: Path
    list_missing: Callable[[], Sequence[str]]
    make: Callable[[], None]
    hand_over: Callable[[Path], None]


@dataclass(frozen=True)
class StageServices:
    """Where a stage works before its first step. progress: shows how far the work is.

    stop: raises Stopped where a signal asked for it.  share: has all parts made that are missing, by several workers
    where that was requested.  claims: in such a worker, the folder by which it takes its parts (`storage.claims`); it
    does nothing else.
    """

    progress: Watch
    stop: Callable[[], None]
    share: Callable[[SharedParts], None] = lambda parts: parts.make()
    claims: Path | None = None


Opening = Callable[[], Mapping[str, float]]
"""What is done before the first step → figures about it."""


@dataclass
class PreparedStage:
    """A stage ready to run. module None: there is nothing to train (a tokenizer was trained in `prepare`).

    identity: what must be the same for a checkpoint to be continued.  select: (metric, "max" or "min") of the best.
    plan: with a learning rate.  watched: as of `TrainingContext`.
    opening: work before the first step, which may be long.  told: tells the run what `prepare` found.
    closing: (module, steps that its weights are of) → figures measured once, at the end.  diagnosis: what looks on.
    rows: of a task: LABELLED and TAUGHT → how many rows of each are trained on, and shares such as TEACHER_RIGHT.
    """

    finish: Callable[[], StageOutput]
    module: nn.Module | None = None
    source: BatchSource | None = None
    plan: TrainingPlan | None = None
    validate: Callable[[nn.Module], Mapping[str, float]] | None = None
    select: tuple[str, Literal["max", "min"]] | None = None
    watched: Mapping[str, Literal["max", "min"]] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    opening: Opening | None = None
    told: Callable[[TrackedRun], None] | None = None
    closing: Callable[[nn.Module, int], Mapping[str, float]] | None = None
    diagnosis: Diagnosis | None = None
    rows: Mapping[str, float] = field(default_factory=dict)

    def total_steps(self) -> int:
        """Optimizer steps from start to end, the most where the length is automatic."""
        assert self.source is not None
        assert self.plan is not None
        return total_steps(self.plan, self.source)

    def least_steps(self) -> int:
        """Optimizer steps that are made in any case."""
        assert self.source is not None
        assert self.plan is not None
        if self.plan.is_automatic:
            return choose_length(self.plan, self.source.steps(0)).least
        return total_steps(self.plan, self.source)


class Diagnosis(Protocol):
    """Looks on while a stage trains, and tells what is wrong."""

    def begin(self, log: TrackedRun) -> None:
        """Training begins; this is its journal."""
        ...

    def observe(self, module: nn.Module, history: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """A validation was made: see `TrainingContext.observe`."""
        ...

    def close(self) -> Sequence[Sequence[object]]:
        """Training has ended; what was found, a row of FINDING_COLUMNS each."""
        ...


class Stage(Protocol):
    """One kind of stage; found by the registry as `compress/<kind>/stage.py`."""

    def __init__(self, spec: Any, context: StageContext) -> None: ...

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        """What this stage will make of the model before it (`start`), told before any stage runs.

        Raises UserError for lengths, layers and vocabularies that cannot fit. None: unknown.
        """
        ...

    def plan(self) -> list[str]:
        """What would be done, in lines, reading no weights: `--dry-run`."""
        ...

    def prepare(self) -> PreparedStage:
        """Check what the stage is given, and return the model, data and objectives to train, or a finished model.

        Raises UserError for models, labels, lengths and vocabularies that do not fit; Stopped where a signal asked.
        """
        ...


class SharingStage(Stage, Protocol):
    """A stage with work before its first step that several processes can share: its spec `shares_work`."""

    def make_parts(self, handed: Path) -> None:
        """Make those parts of it that no other worker takes (`StageServices.claims`); the stage is not prepared.

        handed: the folder that `SharedParts.hand_over` filled. Raises as `prepare`."""
        ...


def require_folder(path: Path | None, what: str, flag: str, stage: str) -> Path:
    """`path`, or a UserError that says which flag or stage gives it."""
    if path is None:
        raise UserError(
            f"stage {stage} needs {what}", where=flag, do=f"add {flag} FOLDER, or use a recipe that creates it"
        )
    return path

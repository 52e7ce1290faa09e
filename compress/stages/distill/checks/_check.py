"""Base class of the checks: run before the first step or at validations, return a finding or None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from compress.contracts import TrainingPlan
from compress.stages.distill.probe import AskedModel, Probe
from compress.stages.distill.spec import Spec
from compress.training.module import StageModule

About = Literal["teacher", "student"]


@dataclass(frozen=True)
class Finding:
    """What a check found. check: its name.  step: after which, 0 before the first.  text: what is wrong, and where.
    do: what to do about it.  about: whose problem it is.  stops: going on makes no sense, unless the recipe says so."""

    check: str
    step: int
    text: str
    do: str
    about: About
    stops: bool = False

    @property
    def line(self) -> str:
        """`text; do`, for people."""
        return f"{self.text}; {self.do}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"check": self.check, "step": self.step, "finding": self.text, "do": self.do}


@dataclass(frozen=True)
class Start:
    """A stage before its first step.

    probe: the fixed rows.  teacher: answers any batch, None where nobody teaches.  ours, theirs: (N, C) what student
    and teacher say of the probe; theirs None: no teacher.  projections: parameter of the objectives → a copy.
    plan: with a learning rate.  steps: that are made in any case.  label_names: of the data, none on a corpus.
    by_number: one side has no label names, so that labels were matched by number.
    """

    spec: Spec
    plan: TrainingPlan
    module: StageModule
    probe: Probe
    teacher: AskedModel | None
    ours: np.ndarray
    theirs: np.ndarray | None
    projections: Mapping[str, Tensor]
    steps: int
    label_names: Sequence[str] = ()
    by_number: bool = False

    @property
    def answers(self) -> bool:
        """Whether an objective reads what the probe compares, so that what the student answers is being trained."""
        needs = [self.module.objectives[name].student_needs for name, w in self.module.weights.items() if w > 0]
        return any(getattr(n, field) for n in needs for field in self.probe.trained_by)  # pyright: ignore


@dataclass(frozen=True)
class Course:
    """A stage at a validation. readings: one row each, the first of them from before training: `step`, the probe's
    figures, `probe_loss`, `probe/<objective>`.  ours: what the student says of the probe now."""

    start: Start
    ours: np.ndarray
    readings: Sequence[Mapping[str, float]] = field(default_factory=tuple)

    @property
    def now(self) -> Mapping[str, float]:
        """The newest reading."""
        return self.readings[-1]

    @property
    def step(self) -> int:
        """How many steps are made."""
        return int(self.now["step"])

    @property
    def settled(self) -> bool:
        """Past the warm-up and a fifth of the steps: before that a student may be anything."""
        return self.step >= max(self.start.plan.warmup, 0.2) * self.start.steps

    @property
    def ended(self) -> bool:
        """The last step is made; of a training of automatic length, the least steps."""
        return self.step >= self.start.steps


class Check:
    """Base of the checks; a check overrides one of the two or both.

    kind: the name of its file.  about: whose problems it finds: of a teacher with one, what its student learns or not
    says little.
    """

    kind: ClassVar[str]
    about: ClassVar[About]

    def check_start(self, start: Start) -> Finding | None:
        """Before the first step."""
        return None

    def check_progress(self, course: Course) -> Finding | None:
        """At a validation; once it has found something it is not asked again."""
        return None

    def make_finding(self, text: str, do: str, *, step: int = 0, stops: bool = False) -> Finding:
        """A finding of this check."""
        return Finding(self.kind, step, text, do, self.about, stops)

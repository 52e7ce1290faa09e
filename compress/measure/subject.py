"""What is measured: models, and the role that each plays in a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from compress.modelfolder.ensemble import Ensemble
from compress.modelfolder.sentence_files import identity
from compress.onnx.runtimes import Runtime
from compress.predict.cascade import open_predictor
from compress.predict.predictor import EnsemblePredictor, Predictor
from compress.report.rows import name_model


@dataclass(frozen=True)
class Subject:
    """A model to measure. role: teacher, student, control, of one teacher of several `member_role`, of a stage's model
    on the way `stage_role`.

    ensemble: several that answer together; folder is then that of their lead.  runtime: what computes this one's
    answers, where it is said.
    """

    name: str
    folder: Path
    role: str = "student"
    ensemble: Ensemble | None = None
    runtime: Runtime | None = None

    @cached_property
    def fingerprint(self) -> str:
        """`sentence_files.identity` of the folder: all weights are read once. Not for several that answer together."""
        return identity(self.folder)

    def predictor(self, **how: Any) -> Predictor:
        """What answers."""
        if self.runtime is not None:
            how = {**how, "runtime": self.runtime}
        return open_predictor(self.folder, **how) if self.ensemble is None else EnsemblePredictor(self.ensemble, **how)


MEMBER = "teacher-"


def member_role(place: int) -> str:
    """The role of one of several teachers, counted from 0."""
    return f"{MEMBER}{place + 1}"


STAGE = "stage-"


def stage_role(index: int) -> str:
    """The role of what a stage of the run made on the way to its result, counted from 0."""
    return f"{STAGE}{index}"


def kind_of(role: str) -> str:
    """teacher, student, control or stage: one of several teachers is a teacher."""
    return role.partition("-")[0]


def shown_name(subject: Subject, reference: str) -> str:
    """What tables, plots and progress call it. reference: what the model is called that others are compared with."""
    return name_model(subject.name, subject.role, reference)


def list_teachers(folder: Path, ensemble: Ensemble | None) -> list[Subject]:
    """Whoever taught as subjects: the reference, which is all of several together, and then each of these."""
    if ensemble is None:
        return [Subject("teacher", folder, "teacher")]
    each = [Subject(f"teacher {i + 1}", m.folder, member_role(i)) for i, m in enumerate(ensemble.members)]
    return [Subject("teacher ensemble", folder, "teacher", ensemble), *each]

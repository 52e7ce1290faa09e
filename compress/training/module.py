"""What the loop trains: a student with its objectives, and beside it a teacher that it neither trains nor saves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, Needs, Objective, Teacher
from compress.encoder.modules.blocks import BlockMaps
from compress.encoder.modules.operations import count_operations
from compress.errors import UserError


@dataclass(frozen=True)
class Term:
    """One objective on one micro-batch. value: scalar, a mean over `count` things.  weight: its factor in the total."""

    value: Tensor
    weight: float
    count: int


class Trainable(Protocol):
    """What `train` asks of the nn.Module that it is given.

    One that has `pace(done, total)` is told before each step how many of how many steps are done.
    """

    def __call__(self, batch: Batch) -> Mapping[str, Term]: ...

    def counts(self, batch: Batch) -> Mapping[str, int]:
        """What each term of this micro-batch will count, without running the model (the batch is on the host)."""
        ...


class Regularizer(Protocol):
    """What acts on the student's weights beside the objectives, and changes as training goes.

    name: of the term that it adds to the loss; None: it adds none.
    """

    name: str | None

    def pace(self, done: int, total: int) -> None:
        """So many of so many steps are done."""
        ...

    def penalty(self) -> tuple[Tensor, float]:
        """A scalar of the weights alone, and its factor at this step. Asked where there is a name."""
        ...


class StageModule(nn.Module):
    """Student, objectives and teacher as one trainable thing.

    The student runs once with the union of what the objectives need, the teacher likewise, without gradient and in
    the precision it was prepared in. Objectives are submodules, so that projections they own are trained and saved;
    the teacher is none. Penalties of `companions` count while training, and in no validation.
    Raises UserError for no objective, a bad weight, or an objective without its teacher.
    """

    def __init__(
        self,
        student: nn.Module,
        objectives: Mapping[str, tuple[float, nn.Module]],
        teacher: Teacher | None = None,
        companions: Sequence[Regularizer] = (),
    ) -> None:
        super().__init__()
        if not objectives:
            raise UserError("no objectives", where="objectives", do="add at least one")
        for name, (weight, objective) in objectives.items():
            _check(name, weight, objective, teacher)
        self.student = student
        self.objectives = nn.ModuleDict({name: objective for name, (_, objective) in objectives.items()})
        self.weights = {name: float(weight) for name, (weight, _) in objectives.items()}
        self.companions = tuple(companions)
        self._teacher = (teacher,)  # in a tuple: a module assigned directly would become a part of this one

    def pace(self, done: int, total: int) -> None:
        """Told by the loop before each step."""
        for companion in self.companions:
            companion.pace(done, total)

    @property
    def teacher(self) -> Teacher | None:
        return self._teacher[0]

    def counts(self, batch: Batch) -> dict[str, int]:
        """Objective → number of things it averages over in this batch."""
        return self._counts(batch) | {c.name: batch.tokens for c in self.companions if c.name is not None}

    def count_operations(self, batch: Batch) -> int | None:
        """Of the products of teacher and student in a step on this micro-batch, which is on the host: a backward pass
        makes two of each of the student's. Without those of the losses alone; None where they are not known."""
        live = self._live(self._counts(batch))
        if not live:
            return 0
        ours = count_operations(self.student, batch, _union(o.student_needs for o in live.values()))
        needs = self._find_teacher_needs(live)
        theirs = 0 if needs is None else count_operations(self.teacher, batch, needs)
        return None if ours is None or theirs is None else 3 * ours + theirs

    def forward(self, batch: Batch, teacher: EncoderOutput | None = None) -> dict[str, Term]:
        """Terms of the objectives that have something to count here. teacher: what `ask_teacher` gave of this batch."""
        counts = self._counts(batch)
        live = self._live(counts)
        terms = self._penalties(batch) if self.training else {}
        if not live:
            return terms
        student, teacher, batch = self._run_both(batch, live, teacher)
        found = {name: Term(o(student, teacher, batch), self.weights[name], counts[name]) for name, o in live.items()}
        return found | terms

    def run_both(self, batch: Batch) -> tuple[EncoderOutput, EncoderOutput | None, Batch]:
        """What the objectives that have something to count here are given: both outputs and the batch."""
        return self._run_both(batch, self._live(self._counts(batch)), None)

    def _run_both(
        self, batch: Batch, live: Mapping[str, Objective], teacher: EncoderOutput | None
    ) -> tuple[EncoderOutput, EncoderOutput | None, Batch]:
        student = cast(EncoderOutput, self.student(batch, _union(o.student_needs for o in live.values())))
        teacher = self._ask_teacher(batch, live) if teacher is None else teacher
        return self.prepare_outputs(student, teacher, batch)

    def prepare_outputs(
        self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch
    ) -> tuple[EncoderOutput, EncoderOutput | None, Batch]:
        """What the objectives are given."""
        return student, teacher, batch

    def _counts(self, batch: Batch) -> dict[str, int]:
        return {name: objective.count(batch.on_host) for name, objective in self._named().items()}

    def _penalties(self, batch: Batch) -> dict[str, Term]:
        """The same in each micro-batch of a step: weighed by its share of the tokens, it adds up to itself."""
        return {c.name: Term(*c.penalty(), batch.tokens) for c in self.companions if c.name is not None}

    def _named(self) -> dict[str, Objective]:
        return {name: cast(Objective, objective) for name, objective in self.objectives.items()}

    def ask_teacher(self, batch: Batch) -> EncoderOutput | None:
        """What the objectives that have something to count here need of it; None where they need nothing."""
        return self._ask_teacher(batch, self._live(self._counts(batch)))

    def _live(self, counts: Mapping[str, int]) -> dict[str, Objective]:
        return {name: objective for name, objective in self._named().items() if counts[name]}

    def _ask_teacher(self, batch: Batch, live: Mapping[str, Objective]) -> EncoderOutput | None:
        needs = self._find_teacher_needs(live)
        if self.teacher is None or needs is None:
            return None
        # The student's autocast is not the teacher's: it was prepared in a precision of its own.
        with torch.no_grad(), torch.autocast(batch.input_ids.device.type, enabled=False):
            return _ordinary(self.teacher(batch, needs))

    def _find_teacher_needs(self, live: Mapping[str, Objective]) -> Needs | None:
        """What they read of the teacher; None: nothing, or there is none."""
        needs = [o.teacher_needs for o in live.values() if o.teacher_needs is not None]
        return _union(needs) if needs and self.teacher is not None else None


def _check(name: str, weight: float, objective: nn.Module, teacher: Teacher | None) -> None:
    if not (math.isfinite(weight) and weight >= 0):
        raise UserError("a weight must be 0 or more", where=f"objective {name}.weight", why=f"found {weight}")
    if cast(Objective, objective).teacher_needs is not None and teacher is None:
        raise UserError("needs a teacher, but none is given", where=f"objective {name}", do="add --teacher")


def _union(needs: Any) -> Needs:
    return reduce(or_, needs, Needs())


def _ordinary(value: Any) -> Any:
    """The output with its inference-mode tensors copied: autograd refuses to keep those for a backward pass.

    The vocabulary part is left alone: its losses keep nothing of the teacher, and its table is large.
    """
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    if isinstance(value, BlockMaps):
        return value.apply(_ordinary)
    if isinstance(value, tuple | list):
        return type(value)(_ordinary(item) for item in value)
    if isinstance(value, EncoderOutput):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name != "vocabulary"}
        return dataclasses.replace(value, **{name: _ordinary(field) for name, field in fields.items()})
    return value

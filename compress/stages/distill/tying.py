"""Layers that come together while a student trains: residuals that shrink to nothing, and a penalty on the distance of
layers that will merge (gradual tying, as relaxed sharing in reverse: 2410.20672)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from compress.contracts import LayerGroups
from compress.encoder.config.sharing import PARTS, build_contiguous_groups, check_shapes, number_listed_groups
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import measure_distances, scale_residuals
from compress.encoder.reshape.students import remove_residuals
from compress.errors import UserError
from compress.stages.distill.spec import Spec
from compress.stages.distill.tying_spec import ProximitySpec, ShrinkSpec
from compress.stages.shared.stage import StageContext
from compress.training.module import Regularizer
from compress.training.schedule import ramp

Validation = Callable[[nn.Module], Mapping[str, float]]
TERM = "layers_apart"
"""The penalty's name in the training curves."""


class ResidualShrinking:
    """Residuals that fade from whole to nothing. A `Regularizer` of the student's training."""

    name: str | None = None

    def __init__(self, student: Model, spec: ShrinkSpec) -> None:
        """Raises UserError for a student without residuals."""
        sharing = student.config.sharing
        if sharing is None or not sharing.residual_rank:
            raise UserError(
                "the student has no residuals to shrink",
                where="shrink_residuals",
                why="its layers share no parameters" if sharing is None else "its shared layers have none",
                do="set residual_rank in the share stage before it, or remove this key",
            )
        self.student, self.spec, self.factor = student, spec, 1.0

    def pace(self, done: int, total: int) -> None:
        self.factor = 1 - ramp(done, total, self.spec.begin, self.spec.end)
        scale_residuals(self.student, self.factor)

    def penalty(self) -> tuple[Tensor, float]:
        raise NotImplementedError("it has no term")

    def wrap_validation(self, validate: Validation) -> Validation:
        """`validate` of the student as it will be kept."""

        def validated(module: nn.Module) -> Mapping[str, float]:
            scale_residuals(self.student, 0.0)
            try:
                return validate(module)
            finally:
                scale_residuals(self.student, self.factor)

        return validated


class ProximityRegularizer:
    """Layers that are drawn to their group's mean. A `Regularizer` of the student's training."""

    name: str | None = TERM

    def __init__(self, student: Model, spec: ProximitySpec) -> None:
        """Raises UserError for groups that do not fit the student, and for layers of different shapes."""
        self.student, self.spec, self.factor = student, spec, 0.0
        depth, where = student.config.depth, "proximity.groups"
        if isinstance(spec.groups, int):
            groups = build_contiguous_groups(depth, spec.groups, where)
        else:
            groups = number_listed_groups(depth, spec.groups, where)
        self.groups = LayerGroups(groups, groups)
        for part in PARTS:
            check_shapes(student.config.layers, groups, part, where)
        if len(set(groups)) == depth:
            raise UserError("every group has a single layer", where=where, do="use fewer groups, or remove proximity")
        self.matrices = sum(groups.count(g) > 1 for g in set(groups)) * sum(map(len, PARTS.values()))

    def pace(self, done: int, total: int) -> None:
        self.factor = self.spec.weight * self.matrices * ramp(done, total, self.spec.begin, self.spec.end)

    def penalty(self) -> tuple[Tensor, float]:
        """The distance; its factor makes a sum of the mean: in every model the same pulls at a weight."""
        return self.distance(), self.factor

    def distance(self) -> Tensor:
        """Scalar, mean over groups and matrices: 0 where the layers of every group are equal."""
        layers = [self.student.encoder.layers[group] for group in self.student.config.groups]
        return torch.stack(list(measure_distances(layers, self.groups).values())).mean()


class Tying:
    """What of this a stage asks for, its student, and what it tells."""

    def __init__(self, spec: Spec, student: Model, context: StageContext) -> None:
        """Raises UserError where it does not fit the student."""
        self.student, self.context = student, context
        self.shrinking = None if spec.shrink_residuals is None else ResidualShrinking(student, spec.shrink_residuals)
        self.pulling = None if spec.proximity is None else ProximityRegularizer(student, spec.proximity)
        self.before = self._distance()

    @property
    def regularizers(self) -> Sequence[Regularizer]:
        """Of the student's training."""
        return [companion for companion in (self.shrinking, self.pulling) if companion is not None]

    def wrap_validation(self, validate: Validation) -> Validation:
        """`validate` of the model that is kept."""
        return validate if self.shrinking is None else self.shrinking.wrap_validation(validate)

    def report_distances(self, module: nn.Module, steps: int) -> Mapping[str, float]:
        """How far apart the layers were before the first step, and are now."""
        if self.pulling is None:
            return {}
        now = self._distance()
        self.context.say(f"distance between the layers to be tied: {self.before:.3f} before, {now:.3f} now (0: equal)")
        return {f"{TERM}_before": self.before, TERM: now}

    def finish_student(self) -> Model:
        """The student that the stage leaves."""
        return self.student if self.shrinking is None else remove_residuals(self.student)

    def _distance(self) -> float:
        if self.pulling is None:
            return 0.0
        with torch.no_grad():
            return float(self.pulling.distance())

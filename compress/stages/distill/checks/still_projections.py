"""Detects projection matrices that do not change."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from compress.stages.distill.checks import _check
from compress.stages.distill.checks._check import Course, Finding

STILL = 1e-3
"""Radians that a matrix must have turned. AdamW moves each weight by about the learning rate a step: a hundred steps
at 1e-5 add up to 1e-3 on weights of about 0.05, a hundredth. Weight decay alone shrinks without turning."""


class Check(_check.Check):
    """Projections not learning: past a fifth of the steps a trained matrix of an objective points where it did.

    Such as without a gradient, or at a learning rate that is far too small. Objectives of weight 0 are not asked.
    """

    kind = "still_projections"
    about = "student"

    def check_progress(self, course: Course) -> Finding | None:
        if not course.settled:
            return None
        module = course.start.module
        now = dict(module.objectives.named_parameters())
        still = [
            name
            for name, before in course.start.projections.items()
            if module.weights[name.partition(".")[0]] > 0 and measure_angle(before, now[name].detach()) < STILL
        ]
        if not still:
            return None
        owners = ", ".join(dict.fromkeys(name.partition(".")[0] for name in still))
        rate = course.start.plan.rate
        return self.make_finding(
            f"after step {course.step} the projections of {owners} have not changed ({len(still)} of "
            f"{len(course.start.projections)} matrices)",
            f"raise the learning rate ({rate:g}) or the objective's weight; untrained projections only add noise",
            step=course.step,
        )


def measure_angle(before: Tensor, after: Tensor) -> float:
    """The angle between two parameters in radians; of one that began at zero, how far it went."""
    a, b = before.double().flatten(), after.double().flatten().to(before.device)
    length = float(a.norm() * b.norm())
    if not float(a.norm()):
        return float(b.norm()) / math.sqrt(b.numel())
    return 0.0 if not length else 2 * math.asin(min(1.0, float((a / a.norm() - b / b.norm()).norm()) / 2))


def matrices(objectives: torch.nn.Module) -> dict[str, Tensor]:
    """Copies of what objectives train along: their parameters of two and more dimensions."""
    return {name: p.detach().clone() for name, p in objectives.named_parameters() if p.dim() > 1 and p.requires_grad}

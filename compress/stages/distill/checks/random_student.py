"""Detects a student whose weights were never trained."""

from __future__ import annotations

from torch import nn

from compress.encoder.modules.model import Model
from compress.stages.distill.checks import _check
from compress.stages.distill.checks._check import Finding, Start


class Check(_check.Check):
    """Random student: layers as they are before any training.

    Every norm there has gains of exactly 1, and every bias is exactly 0. Training moves all of them in its first step,
    so that no trained layer looks like that.
    """

    kind = "random_student"
    about = "student"

    def check_start(self, start: Start) -> Finding | None:
        student = start.module.student
        assert isinstance(student, Model)
        groups = [group for group, layer in enumerate(student.encoder.layers) if is_untrained(layer)]
        if not groups:
            return None
        layers = [str(i) for i, group in enumerate(student.config.groups) if group in groups]
        where = "all layers" if len(groups) == len(student.encoder.layers) else f"layers {', '.join(layers)}"
        said = start.spec.student is not None and start.spec.student.init == "random"
        if said:
            return self.make_finding(
                f"the student starts from random weights in {where}, as the recipe says",
                "student.init: teacher copies the teacher's weights and needs far fewer rows",
            )
        return self.make_finding(
            f"the student's weights are random in {where}: they were never trained",
            "start from the teacher's layers (student.init: teacher) or from a trained checkpoint",
        )


def is_untrained(layer: nn.Module) -> bool:
    """Whether the norms and biases of a layer are what they are made with."""
    norms = [m for m in layer.modules() if isinstance(m, nn.LayerNorm)]
    biases = [m.bias for m in layer.modules() if isinstance(m, nn.Linear | nn.LayerNorm) and m.bias is not None]
    return bool(norms) and all(bool((n.weight == 1).all()) for n in norms) and not any(bool(b.any()) for b in biases)

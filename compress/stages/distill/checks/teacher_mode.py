"""Detects a teacher with dropout still active."""

from __future__ import annotations

import numpy as np

from compress.stages.distill.checks import _check
from compress.stages.distill.checks._check import Finding, Start

SAME = 1e-3
"""Of the answers' spread: kernels that add in another order differ by 1e-6 of it, dropout by a tenth and more."""


class Check(_check.Check):
    """Teacher not in evaluation mode: asked twice for the same rows it must say the same.

    Its targets would be noise on top of what it knows, other noise each epoch.
    """

    kind = "teacher_mode"
    about = "teacher"

    def check_start(self, start: Start) -> Finding | None:
        if start.teacher is None:
            return None
        first, second = (start.probe.sample(start.teacher) for _ in range(2))
        apart, spread = float(np.abs(first - second).max()), float(first.std())
        if apart <= SAME * max(spread, 1e-12):
            return None
        return self.make_finding(
            f"the teacher is not in evaluation mode: two passes over the same rows differ by {apart:.2g} "
            f"(standard deviation of the outputs: {spread:.2g})",
            "call eval() on it before training",
        )

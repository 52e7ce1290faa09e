"""Detects objectives whose loss did not fall."""

from __future__ import annotations

from collections.abc import Mapping

from compress.stages.distill.checks import _check
from compress.stages.distill.checks._check import Course, Finding

FALL = 0.02
"""Share by which an objective must have fallen at the end."""
SMALL = 1e-3
"""What is below this was met from the start."""
GOOD = 0.95
"""Agreement with the teacher from which a student starts near the floor of its loss, as a quantized parent does."""


class Check(_check.Check):
    """Objectives that did not fall: measured on fixed training rows, at the start and after the last step. Not of a
    student that agrees with its teacher from the start to the end: its loss has nowhere to fall."""

    kind = "standing_objectives"
    about = "student"

    def check_progress(self, course: Course) -> Finding | None:
        if not course.ended:
            return None
        score = course.start.probe.score
        if min(row.get(score, 0.0) for row in (course.readings[0], course.now)) >= GOOD:
            return None
        weights = course.start.module.weights
        rows = find_standing_objectives(course.readings[0], course.now, [name for name, w in weights.items() if w > 0])
        if not rows:
            return None
        told = ", ".join(f"{name} ({before:.3g} → {after:.3g})" for name, before, after in rows)
        return self.make_finding(
            f"did not fall by {100 * FALL:g} % in {course.step} steps: {told}",
            "raise their weight or the learning rate, or remove them; the layer map or widths may not match",
            step=course.step,
        )


def find_standing_objectives(
    before: Mapping[str, float], now: Mapping[str, float], names: list[str]
) -> list[tuple[str, float, float]]:
    """(objective, value before, value now) of those that have not fallen. before, now: readings of a course."""
    keys = [(name, f"probe/{name}") for name in names]
    pairs = [(name, before[key], now[key]) for name, key in keys if key in before and key in now]
    return [(name, a, b) for name, a, b in pairs if a > SMALL and b > (1 - FALL) * a]

"""Detects student and teacher logits on different scales, or a teacher too confident for its temperature."""

from __future__ import annotations

from typing import Any

import numpy as np

from compress.stages.distill.checks import _check
from compress.stages.distill.checks._check import Course, Finding, Start
from compress.stages.distill.probe import TaskProbe
from evaluation.quality.agreement import softmax

APART = 4.0
"""Times. Logits of another scale are probabilities at another temperature: 4 times is T = 8 instead of T = 2."""
SURE = 0.995
"""Top probability at the objective's temperature, above which soft targets say what a hard label says: the gradient of
all other classes together is below a hundredth of the right one's."""
MOST = 0.9
"""Share of the rows that are so sure."""


class Check(_check.Check):
    """Student and teacher logit scales far apart: 4 times and more.

    Before training only the teacher is judged, since a new head says next to nothing: when nine of ten rows have a top
    probability above 0.995 at the temperature of the soft targets, these are hard labels.
    """

    kind = "logit_scales"
    about = "student"

    def check_start(self, start: Start) -> Finding | None:
        temperature = _temperature(start)
        probe = start.probe
        if temperature is None or start.theirs is None or not isinstance(probe, TaskProbe) or probe.gold is None:
            return None
        if start.theirs.shape[1] < 2:
            return None
        sure = float((softmax(start.theirs / temperature).max(1) > SURE).mean())
        if sure < MOST:
            return None
        scale = probe.scale(start.theirs)
        return self.make_finding(
            f"the teacher's logits are so large (spread {scale:.3g}) that its probabilities at temperature "
            f"{temperature:g} are nearly hard labels: above {SURE} on {100 * sure:.0f} % of {probe.what}",
            f"raise the temperature, to about {_softer(start.theirs):.0f}, or calibrate the teacher first",
        )

    def check_progress(self, course: Course) -> Finding | None:
        start = course.start
        if start.theirs is None or not start.answers or not course.settled:
            return None
        ours, theirs = start.probe.scale(course.ours), start.probe.scale(start.theirs)
        if theirs == 0 or not np.isfinite(ours / theirs) or 1 / APART < ours / theirs < APART:
            return None
        if ours == 0:
            apart = "are all equal"
        elif ours > theirs:
            apart = f"are {ours / theirs:.3g} times larger than the teacher's"
        else:
            apart = f"are {theirs / ours:.3g} times smaller than the teacher's"
        return self.make_finding(
            f"after step {course.step} the student's logits {apart} (spread {ours:.3g} against {theirs:.3g} on "
            f"{start.probe.what})",
            "train longer or with a higher learning rate, raise the weight of objectives on logits, or use "
            "soft_targets with "
            "per_example: true",
            step=course.step,
        )


def _temperature(start: Start) -> float | None:
    """Of the soft targets on the task's answers that weigh most; None without any."""
    rows: list[Any] = [r for r in start.spec.objectives if r.kind == "soft_targets" and r.weight > 0]
    rows = [r for r in rows if r.on == "task" and not r.per_example]
    return max(rows, key=lambda r: r.weight).temperature if rows else None


def _softer(logits: np.ndarray) -> float:
    """The smallest whole temperature at which half of the rows are less sure than 0.95."""
    for temperature in range(2, 200):
        if np.median(softmax(logits / temperature).max(1)) < 0.95:
            return float(temperature)
    return 200.0

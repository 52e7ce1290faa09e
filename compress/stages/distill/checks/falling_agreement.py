"""Detects agreement with the teacher falling while the loss falls."""

from __future__ import annotations

import math
from collections.abc import Mapping

from compress.stages.distill.checks import _check
from compress.stages.distill.checks._check import Course, Finding

POINTS = 0.03
"""Least fall that matters, of 1."""
ERRORS = 3.0
"""Standard errors of a difference of two shares that the fall must exceed. The rows are the same, so that the true
error is smaller: this is the careful side."""
FALL = 0.02
"""Share by which the loss must have fallen meanwhile."""


class Check(_check.Check):
    """Agreement falling while loss falls: what is minimised is not what the student is for.

    Agreement with the teacher on held-out rows against the best before it, and the loss on fixed training rows between
    the same two validations.
    """

    kind = "falling_agreement"
    about = "student"

    def check_progress(self, course: Course) -> Finding | None:
        name, now = course.start.probe.score, course.now
        earlier = [row for row in course.readings[:-1] if name in row]
        if name not in now or not earlier or not course.start.answers:
            return None
        best = max(earlier, key=lambda row: row[name])
        fallen = best[name] - now[name]
        rows = len(course.start.probe.gold) if course.start.probe.gold is not None else len(course.ours)
        share = min(max(now[name], 0.0), 1.0)
        error = math.sqrt(2 * max(share * (1 - share), 1 / rows) / rows)
        if fallen < max(POINTS, ERRORS * error) or not now["probe_loss"] < (1 - FALL) * best["probe_loss"]:
            return None
        return self.make_finding(
            f"after step {course.step} {name} with the teacher has fallen from {best[name]:.3f} (step "
            f"{int(best['step'])}) to {now[name]:.3f} on {course.start.probe.what}, while the loss on training "
            f"rows fell from {best['probe_loss']:.3g} to {now['probe_loss']:.3g}",
            f"lower the weight of {_steepest(best, now)}, which fell most, or raise that of the soft targets; "
            "or train on more rows",
            step=course.step,
        )


def _steepest(before: Mapping[str, float], now: Mapping[str, float]) -> str:
    """The objective whose loss fell by the largest share."""
    shares = {k.partition("/")[2]: now[k] / before[k] for k in now if k.startswith("probe/") and before.get(k, 0) > 0}
    return min(shares, key=lambda k: shares[k]) if shares else "the other objectives"

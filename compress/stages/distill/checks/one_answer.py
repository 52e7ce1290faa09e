"""Detects a student that predicts the same label for every row."""

from __future__ import annotations

import numpy as np

from compress.stages.distill.checks import _check
from compress.stages.distill.checks._check import Course, Finding

ALL = 0.98
"""Share of the rows with the student's commonest answer."""
LESS = 0.1
"""By how much the teacher's share of that answer must lie below: on uneven data the commonest label is no collapse."""


class Check(_check.Check):
    """One answer for all rows: why an accuracy is that of always saying one label (14 % of seven)."""

    kind = "one_answer"
    about = "student"

    def check_progress(self, course: Course) -> Finding | None:
        start = course.start
        if start.theirs is None or start.probe.gold is None or not start.label_names or not course.settled:
            return None
        ours, theirs = course.ours.argmax(1), start.theirs.argmax(1)
        label = int(np.bincount(ours).argmax())
        share, usual = float((ours == label).mean()), float((theirs == label).mean())
        if share < ALL or usual > share - LESS or not start.answers:
            return None
        return self.make_finding(
            f"after step {course.step} the student predicts '{start.label_names[label]}' for {100 * share:.0f} % of "
            f"{start.probe.what}, the teacher for {100 * usual:.0f} %",
            "try a tenth of the learning rate and a longer warm-up; compress distill --check tests whether it can "
            "learn",
            step=course.step,
        )

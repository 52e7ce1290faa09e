"""Detects a teacher whose label order differs from the data's."""

from __future__ import annotations

import numpy as np

from compress.data.tables.label_order import show_names
from compress.data.tables.table import UNLABELLED
from compress.errors import list_some
from compress.stages.distill.checks import _check
from compress.stages.distill.checks._check import Finding, Start
from compress.stages.distill.probe import TaskProbe
from evaluation.quality.crossed import find_crossed_labels


class Check(_check.Check):
    """Label order of teacher and data disagree: in another order of its outputs the teacher is right far more often.

    Where names are equal but mean something else, or where labels were matched by number. The order is searched on half
    of the rows and tried on the other half; p < 0.001 of a sign test. Soft targets and labels would pull in opposite
    directions, so the run stops, unless the recipe sets `checks: warn`.
    """

    kind = "label_order"
    about = "teacher"

    def check_start(self, start: Start) -> Finding | None:
        gold = start.probe.gold
        if start.theirs is None or gold is None or not isinstance(start.probe, TaskProbe):
            return None
        known = gold != UNLABELLED
        if not known.any():
            return None
        found = find_crossed_labels(gold[known], start.theirs[known].argmax(1), start.theirs.shape[1])
        if found is None:
            return None
        names = list(start.label_names)
        moved = [i for i in range(len(names)) if found.order[i] != i]
        pairs = list_some([f"'{names[i]}' rows get '{names[found.order[i]]}'" for i in moved], 4)
        text = (
            f"the label orders of teacher and data differ: {pairs}; the teacher is right on "
            f"{100 * found.plain:.1f} % of {start.probe.what} in the current order, on {100 * found.ordered:.1f} % "
            f"in this one"
        )
        return self.make_finding(text, self._do(start, names, found.order), stops=True)

    @staticmethod
    def _do(start: Start, names: list[str], order: np.ndarray) -> str:
        told = [names[i] for i in order]
        if start.by_number:
            return f"name the data's labels in the teacher's order: --set 'data.labels=[{', '.join(told)}]'"
        true = [names[i] for i in np.argsort(order)]
        return (
            f"correct id2label in the teacher's config.json to {show_names(true)}, "
            "or continue anyway with --set 'stages.*.checks=warn'"
        )

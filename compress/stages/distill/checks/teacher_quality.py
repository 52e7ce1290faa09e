"""Detects a teacher that is no better than chance on this data."""

from __future__ import annotations

import math

import numpy as np

from compress.contracts import name_metric
from compress.stages.distill.checks import _check
from compress.stages.distill.checks._check import Finding, Start
from compress.stages.distill.probe import CorpusProbe, TaskProbe
from evaluation.quality.intervals import mean_interval

RESAMPLES = 400
ENOUGH = 50
"""Rows, or masked tokens: of so many, a teacher that is often right is told from one that guesses."""
CHANCE_CORRECTED = ("matthews", "spearman")
"""Figures that are 0 for guessing however uneven the labels are, which accuracy is not."""


class Check(_check.Check):
    """Teacher no better than chance on this data: on held-out rows its figure cannot be told from guessing.

    On labelled rows by the 95 % interval of a figure that is 0 for guessing (Matthews, Spearman), or of the main metric
    against 0; on text by the masked-LM loss against ln(vocabulary), which is that of equal shares for all pieces. Of
    fewer than 50 rows or masked tokens, only where the whole interval is worse than guessing.
    """

    kind = "teacher_quality"
    about = "teacher"

    def check_start(self, start: Start) -> Finding | None:
        if start.theirs is None:
            return None
        if isinstance(start.probe, TaskProbe):
            return self._labelled(start, start.probe, start.theirs)
        assert isinstance(start.probe, CorpusProbe)
        return self._text(start.probe, start.theirs)

    def _labelled(self, start: Start, probe: TaskProbe, theirs: np.ndarray) -> Finding | None:
        scored = probe.score_answers(theirs)
        main = probe.task.choose_metrics(probe.names)[0]
        name = next((m for m in CHANCE_CORRECTED if m in scored.metrics), main)
        where = f"on {probe.what} of this data"
        do = (
            "check the teacher, its label names and the text columns first: a student cannot learn more than its "
            "teacher knows"
        )
        if not math.isfinite(scored.value(name)):
            if np.ptp(theirs) > 0:  # the labels are all equal, which says nothing of the teacher
                return None
            return self.make_finding(f"the teacher predicts the same score for every row {where}", do)
        try:
            figure = scored.interval(name, resamples=RESAMPLES)
        except ValueError:  # undefined in every resample: too few rows to say anything
            return None
        if figure.low > 0 or (figure.high >= 0 and len(probe.rows) < ENOUGH):
            return None
        main_value = scored.value(main)
        text = f"the teacher is no better than chance {where}: {name_metric(main)} {main_value:.3f}"
        if name != main:
            interval = f"{figure.value:+.3f} [{figure.low:+.3f}, {figure.high:+.3f}]"
            text += f", {name_metric(name)} {interval} where random guessing gives 0"
        return self.make_finding(text, do)

    def _text(self, probe: CorpusProbe, theirs: np.ndarray) -> Finding | None:
        losses, guess = probe.losses(theirs), math.log(theirs.shape[1])
        loss = float(losses.mean())
        if loss < guess or (len(losses) < ENOUGH and (len(losses) < 2 or mean_interval(losses).low <= guess)):
            return None
        return self.make_finding(
            f"the teacher is no better than chance on {probe.what}: masked-LM loss {loss:.2f}, "
            f"random guessing gives {guess:.2f}",
            "use a teacher that was pretrained on text like this, with its own masked-LM head",
        )

"""What a finished run left, as `outcome.json` in its folder: whoever made it, and whenever, it is read from there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compress.console import finite
from compress.contracts import Measurement
from compress.data.task import ScoredAnswers
from compress.errors import UserError
from compress.measure.measured_model import MeasuredModel
from compress.measure.subject import Subject
from compress.run.gain import best_control
from compress.run.results import RunReport
from compress.storage import atomic, safe
from compress.storage.sent import find_name
from evaluation.quality.runs import RecordedFigure

OUTCOME = "outcome.json"
VERSION = 1
_LIMIT = 1 << 28


@dataclass(frozen=True)
class Outcome:
    """report: as `RunReport.as_json`.  measured: the models, whose `scored` holds at most the student's main metric on
    the usual draws of rows.  control: the best of those on hard labels.  gain: the sentence of the student's gain.
    """

    report: Mapping[str, Any]
    measured: Sequence[MeasuredModel]
    control: MeasuredModel | None = None
    gain: str | None = None

    @classmethod
    def load(cls, folder: Path) -> Outcome:
        """What the finished run in `folder` left. Raises UserError for a file that `write_outcome` did not write."""
        path = folder / OUTCOME
        said = safe.read_json(path, _LIMIT)
        if said.get("version") != VERSION:
            raise UserError("written by another version of compress", where=str(path), do="use a new output folder")
        try:
            measured = [_read(row) for row in said["models"]]
            control = None if said["control"] is None else measured[said["control"]]
            return cls(said["report"], measured, control, said["gain"])
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise UserError("not the outcome of a run", where=str(path), why=repr(error)) from error

    def find(self, role: str) -> MeasuredModel | None:
        """The model of this role."""
        return next((m for m in self.measured if m.subject.role == role), None)


def write_outcome(report: RunReport, *, draws: bool) -> None:
    """Write what a run left into its folder. draws: also the student's main metric on the usual draws of rows, which
    intervals over several runs need."""
    control = best_control(report.measured)
    place = next((i for i, m in enumerate(report.measured) if m is control), None)
    content = {
        "version": VERSION,
        "report": report.as_json(),
        "models": [_row(m, draws and m.subject.role == "student") for m in report.measured],
        "control": place,
        "gain": None if report.gain is None else report.gain.sentence,
    }
    plain = json.loads(json.dumps(finite(content), default=str))
    atomic.write_json(report.folder / OUTCOME, plain)


def _row(m: MeasuredModel, draws: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"folder": find_name(str(m.subject.folder)), "metric": m.metric, "document": m.as_json()}
    if draws and m.scored is not None and m.metric is not None and m.metric in m.scored.metrics:
        drawn = RecordedFigure.of(m.scored.rows, m.scored.metrics[m.metric])
        row["draws"] = {"rows": m.scored.rows, "value": drawn.value, "figures": drawn.figures.tolist()}
    return row


def _read(row: Mapping[str, Any]) -> MeasuredModel:
    document, metric, scored = row["document"], row["metric"], None
    if (draws := row.get("draws")) is not None:
        figure = RecordedFigure(_number(draws["value"]), np.array([_number(x) for x in draws["figures"]]))
        scored = ScoredAnswers(int(draws["rows"]), {metric: figure})
    values = {key: _number(value) for key, value in document["values"].items()}
    subject = Subject(document["name"], Path(row["folder"]), document["role"])
    return MeasuredModel(subject, Measurement(values, document["context"]), scored, metric, document=document)


def _number(value: float | None) -> float:
    """JSON has no NaN: it is null there."""
    return math.nan if value is None else float(value)

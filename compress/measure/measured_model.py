"""A model with its figures, and the names of those figures that code asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compress.contracts import FAKE, Measurement
from compress.data.task import ScoredAnswers
from compress.measure.calibration import Calibration
from compress.measure.subject import Subject
from compress.storage.sent import find_name
from evaluation.quality.churn import Group
from evaluation.quality.gaps import Gap, find_largest_gap
from evaluation.quality.pairing import ResampledMetric
from evaluation.quality.slices import Slice

INTEGER_MB = "size/integer_mb"
"""The figure that only models have whose integers were computed in floats."""
QUALITY_KEPT, KEPT_ABOVE_CHANCE = "vs_teacher/quality_kept_pct", "vs_teacher/quality_kept_above_chance_pct"
GAP = "groups/gap"
"""The largest difference of the main metric between two groups of rows, a share."""


@dataclass(frozen=True)
class MeasuredModel:
    """A subject with its figures. scored: its answers, from which any of them can be resampled.  metric: the one of
    the task that decides; None where nothing was scored.  churn: rows answered otherwise than by the teacher.  slices:
    the metric on groups of rows, against the teacher where there is one.  resampled: the metric on resamples of the
    rows, by which other runs are paired with it.  groups: the metric on the groups of one
    column, whose gaps are of interest.  by_model: rows that each model of a cascade answered.  document: of a model
    that another process measured, what `as_json` gave."""

    subject: Subject
    measurement: Measurement
    scored: ScoredAnswers | None = None
    metric: str | None = None
    churn: Sequence[Group] = ()
    calibration: Calibration | None = None
    slices: Sequence[Slice] = ()
    resampled: ResampledMetric | None = None
    groups: Sequence[Slice] = ()
    by_model: Sequence[int] = ()
    document: Mapping[str, Any] | None = None

    @property
    def gap(self) -> Gap | None:
        """The largest difference of the metric between two of `groups`; None where it is not known."""
        return find_largest_gap(self.groups)

    @property
    def is_simulated(self) -> bool:
        """Whether its integers were computed in floats: its quality is an estimate, and it has no speed."""
        return INTEGER_MB in self.measurement.values

    @property
    def quality(self) -> tuple[float, float, float] | None:
        """Of the main metric: value, and the ends of its 95 % interval; None where these rows leave it undefined."""
        key, values = f"{FAKE if self.is_simulated else 'quality/'}{self.metric}", self.measurement.values
        found = [values.get(f"{key}{part}") for part in ("", "_low", "_high")]
        return None if None in found else tuple(found)  # type: ignore[return-value]

    @property
    def quality_kept(self) -> float | None:
        """Percent of the teacher's main metric; None where no teacher was measured, or none has a figure above 0."""
        return self._compared(QUALITY_KEPT)

    @property
    def kept_above_chance(self) -> float | None:
        """The same of what the teacher has above the best constant answer; None where that is 0."""
        return self._compared(KEPT_ABOVE_CHANCE)

    def _compared(self, key: str) -> float | None:
        return self.measurement.values.get(f"{FAKE}{key}" if self.is_simulated else key)

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        if self.document is not None:
            return dict(self.document)
        told: dict[str, Any] = {"churn": [group.as_json() for group in self.churn]} if self.churn else {}
        told |= {"slices": [s.as_json() for s in self.slices]} if self.slices else {}
        if self.groups:
            gap = self.gap
            told |= {"groups": [s.as_json() for s in self.groups], "gap": None if gap is None else gap.as_json()}
        return {
            "name": self.subject.name,
            "role": self.subject.role,
            **self._where(),
            "values": dict(self.measurement.values),
            "context": dict(self.measurement.context),
            **told,
        }

    def _where(self) -> dict[str, Any]:
        ensemble = self.subject.ensemble
        if ensemble is None:
            return {"folder": find_name(str(self.subject.folder))}
        shares = [{"name": m.name, "folder": find_name(str(m.folder)), "weight": m.weight} for m in ensemble.members]
        return {"folder": None, "members": shares, "combine": ensemble.combine}


def rename_simulated(values: Mapping[str, float]) -> dict[str, float]:
    """The figures of a model whose integers are computed in floats, by their honest names: what it answers is
    fake_quantized/…, and how fast it answers tells nothing of the integers, so it is left out."""
    timed = ("speed/", "memory/", "energy/", "vs_teacher/speedup", "vs_teacher/throughput_ratio")
    stored = {"vs_teacher/size_ratio", "vs_teacher/params_ratio"}
    found = {}
    for key, value in values.items():
        if key.startswith(timed) and key != "speed/gflops":
            continue
        if key.startswith("quality/"):
            found[f"{FAKE}{key.removeprefix('quality/')}"] = value
        elif key.startswith(("vs_teacher/", GAP)) and key not in stored:
            found[f"{FAKE}{key}"] = value
        else:
            found[key] = value
    return found

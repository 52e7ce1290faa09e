"""A row of the comparison: a run of the store, or a model that was measured just now, with the same figures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from compress.contracts import FAKE
from compress.report.rows import METRICS
from compress.tracking.names import MEASURED
from compress.tracking.reading import StoredRun
from evaluation.frontier import Candidate
from evaluation.quality.pairing import ResampledMetric

SIZE, LATENCY, SPEEDUP = "size/disk_mb", "speed/latency_p50_ms", "vs_teacher/speedup"
MEAN = "speed/latency_mean_ms"
MISSING = "—"
SERVING = "serving_precision"
"""What floats are computed in on the device; the precision beside it is the model's own, such as int8 of a file."""
CONDITIONS = ("device", "threads", "latency_shape", SERVING)
"""What two latencies must share before one is called the lower. The runtime is part of the model as it is deployed."""
RUNTIME, DATA = "runtime", "data"
NOW = "measured now"
_SHAPE = (SIZE, "size/params_m", "size/params_no_embedding_m", "speed/gflops")
_PARAMS = {"latency_shape": "latency.shape"}
_TIMED = ("speed/latency", "speed/throughput", SPEEDUP, "vs_teacher/throughput")


@dataclass(frozen=True)
class Row:
    """One model. values: figures by MLflow name.  context: what they were measured on (`contracts.Measurement`).

    facts: what else may be asked of it by name: parameters, role, method ….  run: where it is in the store, None for
    a model that was measured now.  resampled: its quality on resamples of the rows.  beside: fingerprint of the
    teacher that it was timed in turn with, which SPEEDUP is against; None where that is not known.
    """

    name: str
    values: Mapping[str, float]
    context: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)
    run: StoredRun | None = None
    resampled: ResampledMetric | None = None
    beside: str | None = None

    @property
    def fingerprint(self) -> str | None:
        """Of the model; None in runs of earlier versions."""
        return self.facts.get("fingerprint")

    @property
    def metric(self) -> str | None:
        """The one that decides; None where nothing was scored."""
        said = self.context.get("metric")
        if said is not None and any(f"{begin}{said}" in self.values for begin in ("quality/", FAKE)):
            return said
        return next((m for m in METRICS if f"quality/{m}" in self.values), None)

    @property
    def simulated(self) -> bool:
        """Whether its integers were computed in floats, so that it has no latency of its own."""
        return self.metric is not None and f"quality/{self.metric}" not in self.values

    @property
    def quality(self) -> tuple[float, float | None, float | None] | None:
        """The main metric and the ends of its 95 % interval, where they are known."""
        key = f"{FAKE if self.simulated else 'quality/'}{self.metric}"
        value = self.values.get(key)
        return None if value is None else (value, self.values.get(f"{key}_low"), self.values.get(f"{key}_high"))

    @property
    def data(self) -> tuple[str, ...]:
        """What quality was measured on, and by which metric: only rows that share it are ranked."""
        split = self.context.get("dataset", "").rpartition("/")[2]
        return self.metric or "", self.context.get("dataset_digest", ""), split, self.context.get("rows", "")

    @property
    def conditions(self) -> tuple[str, ...] | None:
        """What its latency was measured under; None without a latency."""
        return None if LATENCY not in self.values else tuple(self.condition(name) for name in CONDITIONS)

    @property
    def latency(self) -> float | None:
        """In ms: the mean over texts where texts were timed, since the median of a cascade is that of its first model
        alone; None where nothing was timed."""
        return self.values.get(MEAN, self.values.get(LATENCY))

    @property
    def runtime(self) -> str | None:
        """What computed its answers, without the version; None where nothing was timed."""
        return None if LATENCY not in self.values else re.split("[ ,]", self.condition(RUNTIME))[0]

    @property
    def shape(self) -> tuple[object, ...] | None:
        """All that decides how fast it is; None where one of these was not measured. Two models of one shape, such as
        two seeds, are equally fast: that their latencies differ is due to other load on the machine."""
        if self.runtime is None or any(name not in self.values for name in _SHAPE):
            return None
        figures = [f"{self.values[name]:.6g}" for name in _SHAPE]  # the store keeps six digits
        layers = self.facts.get("student.layers"), self.facts.get("student.hidden")
        return *figures, *layers, self.condition("precision"), self.condition(RUNTIME)

    @property
    def dataset(self) -> str | None:
        """What quality was measured on, for people."""
        return f"{self.context['dataset']}, {self.data[3] or '?'} rows" if "dataset" in self.context else None

    def condition(self, name: str) -> str:
        """One of CONDITIONS or the runtime, as the measurement or else the run's parameters say; else "unknown"."""
        found = self.context.get(name) or self.facts.get(_PARAMS.get(name, name))
        if found is None and name == SERVING:  # earlier versions recorded the precision of the model alone
            return "bf16" if self.condition("precision") == "bf16" else "fp32"
        return found or "unknown"

    @property
    def missing(self) -> list[str]:
        """Which of the three figures of the trade-off it lacks."""
        had = {"quality": self.quality is not None, "size": SIZE in self.values, "latency": LATENCY in self.values}
        return [name for name, there in had.items() if not there]

    @property
    def candidate(self) -> Candidate | None:
        """For the frontier; None where quality, its interval or the size are not known."""
        value, low, high = self.quality or (None, None, None)
        size = self.values.get(SIZE)
        if value is None or low is None or high is None or size is None:
            return None
        if not all(map(math.isfinite, (value, low, high, size))):
            return None
        figures = self.resampled if self.resampled is not None and self.resampled.metric == self.metric else None
        exact = value if figures is None else figures.value  # the store keeps six digits: equal models must be equal
        return Candidate(exact, low, high, size, self.latency, self.data, self.conditions, figures, self.shape)


def drop_busy_speeds(values: Mapping[str, float], context: Mapping[str, str]) -> dict[str, float]:
    """Without the speeds that were measured on a busy machine: earlier versions logged them."""
    busy = context.get("contaminated") == "yes"
    return {k: v for k, v in values.items() if not (busy and k.startswith(_TIMED))}


def of_run(run: StoredRun, name: str, resampled: ResampledMetric | None) -> Row:
    """A run of the store. name: how it is shown."""
    context = {k.removeprefix(MEASURED): v for k, v in run.tags.items() if k.startswith(MEASURED)}
    own = {k.removeprefix("compress."): v for k, v in run.tags.items() if k in _OWN}
    facts = {**run.params, **own, "experiment": run.experiment, "run": run.run_id, "run_name": run.name}
    values = drop_busy_speeds({k: float(v) for k, v in run.metrics.items() if math.isfinite(v)}, context)
    return Row(name, values, context, facts, run, resampled)


def name_teachers(rows: Sequence[Row]) -> list[Row]:
    """The same rows, each with what it was timed beside: a run's teacher is a run below it, and models that were
    measured now were timed together."""
    teachers: dict[str, set[str | None]] = {}
    for row in rows:
        if row.facts.get("role") == "teacher":
            teachers.setdefault(row.run.parent if row.run else NOW, set()).add(row.fingerprint)
    known = {above: next(iter(found)) for above, found in teachers.items() if len(found) == 1}  # several: an ensemble
    return [replace(row, beside=known.get(row.run.run_id if row.run else NOW)) for row in rows]


_OWN = ("compress.role", "compress.method", "compress.folder", "compress.fingerprint")


def unique(names: Sequence[str], ids: Sequence[str]) -> list[str]:
    """Names as they are shown: those that occur twice with the begin of their id."""
    return [f"{n} ({i[:8]})" if names.count(n) > 1 and i else n for n, i in zip(names, ids, strict=True)]

"""What a made model is worth: its file, its speed beside the parent's, its answers to validation rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from compress.data.batches.examples import Examples
from compress.data.tables.table import Rows
from compress.data.task import ScoredAnswers
from compress.errors import UserError
from compress.fit.cost.serving import Parts, Serving, build_batch, build_parts, content, mean_over_texts
from compress.fit.loss.row_answers import compute_kl_to_parent
from compress.fit.plan.plans import Plan
from compress.measure.cost import text_speeds
from compress.modelfolder.folder import LoadedModel
from compress.predict.predictor import Predictor
from compress.predict.real_texts import TextCalls, TextLatency
from compress.storage import atomic, safe
from evaluation.cost.latency import Latency, measure_interleaved
from evaluation.cost.size import MB, weights_bytes
from evaluation.frontier import Candidate
from evaluation.quality.pairing import ResampledMetric, resample_metric

JUDGED = 2000
"""Validation rows that plans are judged on, at most."""
RECORD = "judged.json"
"""What was found of a made model, beside it."""
REPEATS, SECONDS = 30, 3.0
STEADY = 1.07
"""Over what the parent took at its best, what it may take now: what shares caches with us slows both, and the
processor's share does not show it."""
Timer = Callable[..., list[Latency]]


@dataclass(frozen=True)
class Prediction:
    """Where a time is not measured but predicted. target: of its file, for people.  device: what it was measured on.
    margin: times by which it may be off in 95 of 100 cases.  tokenization: milliseconds of it that were measured here.
    whole: tokens → milliseconds of a sequence of so many in a model of the parent's shape in 8 bits: how fast it was.
    shape: that shape, as a target has it.
    """

    target: str
    device: Mapping[str, str]
    margin: float
    tokenization: float
    whole: Mapping[str, float] | None = None
    shape: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a batch, and of the parent in the same runtime, in turn. quiet: whether nothing else used the
    processor, and the parent was as fast as before.  parent_least, parent_typical: the least that the parent took in
    all of a fit, and the least of its medians.  attempts: how many times it was measured until the parent's pace let it
    count; this is the time that counts.  texts: of what was timed on texts of the data, whose figures are of the mean
    over these in each round.  predicted: of a target; no time was measured then."""

    p50: float
    p95: float
    minimum: float
    repeats: int
    cpu_share: float
    spread: float
    quiet: bool
    parent_p50: float
    parent_minimum: float
    parent_least: float
    parent_typical: float
    attempts: int = 1
    texts: TextLatency | None = None
    predicted: Prediction | None = None

    @property
    def ms(self) -> float:
        """The median where the parent takes what it takes at its best: how they compare in turn holds on a machine
        whose speed drifts. On a busy one their least times are compared."""
        return self.parent_typical / self.speedup

    @property
    def certain(self) -> float:
        """The median as it was measured; on a busy machine the estimate."""
        return self.p50 if self.quiet else self.ms

    @property
    def behind(self) -> float:
        """The parent's median over the least of its medians: how much slower than usual the machine is."""
        return self.parent_p50 / self.parent_typical

    @property
    def speedup(self) -> float:
        """Over the parent in floats, in the same runtime."""
        return self.parent_p50 / self.p50 if self.quiet else self.parent_minimum / self.minimum

    @classmethod
    def of(
        cls,
        ours: Latency,
        parent: Latency,
        least: float = math.inf,
        typical: float = math.inf,
        texts: TextLatency | None = None,
    ) -> Timing:
        """least, typical: of the parent before, where they are known."""
        least, typical = min(least, parent.minimum), min(typical, parent.p50)
        steady = parent.minimum <= STEADY * least and parent.p50 <= STEADY * typical
        quiet = steady and not (ours.contaminated or parent.contaminated)
        return cls(
            ours.p50, ours.p95, ours.minimum, ours.repeats, ours.cpu_share, ours.spread, quiet, parent.p50,
            parent.minimum, least, typical, texts=texts,
        )  # fmt: skip

    @classmethod
    def predict(cls, ms: float, parent: float, about: Prediction) -> Timing:
        """Of a target, where the parent in floats takes so many milliseconds."""
        return cls(ms, ms, ms, 0, 1.0, 0.0, True, parent, parent, parent, parent, predicted=about)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Timing:
        """Raises KeyError, TypeError or ValueError for what is none."""
        kinds = {"texts": TextLatency, "predicted": Prediction}
        return cls(**{**found, **{key: kind(**found[key]) for key, kind in kinds.items() if found.get(key)}})

    @property
    def remark(self) -> str:
        """What follows the milliseconds where they are not those of a quiet machine."""
        if self.predicted is not None:
            return " (predicted)"
        return "" if self.quiet else " (busy machine)"

    @property
    def is_measured(self) -> bool:
        """False for what was predicted, or estimated on a busy machine."""
        return self.quiet and self.predicted is None

    def speeds(self) -> dict[str, float]:
        """By MLflow name; nothing where none was measured."""
        if not self.is_measured:
            return {}
        if self.texts is not None:
            return text_speeds(self.texts)
        return {"speed/latency_p50_ms": self.p50, "speed/latency_p95_ms": self.p95}


@dataclass(frozen=True)
class Evaluation:
    """A plan that was made. mb: of what is deployed.  value: the main metric on validation.  drop: points lost against
    the parent, with the 95 % interval of the paired difference.  apart: nats from the parent's answers.  steps: that
    it was trained for.  figures: the metric on resamples of the rows, by which two models are paired; None where it is
    undefined."""

    name: str
    plan: Plan
    folder: Path
    mb: float
    timing: Timing
    value: float
    drop: float
    drop_low: float
    drop_high: float
    apart: float
    seconds: float
    steps: int = 0
    figures: ResampledMetric | None = field(default=None, repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Without the figures."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "figures"}
        return {**found, "folder": self.folder.name, "plan": self.plan.as_json(), "timing": asdict(self.timing)}

    def write(self, path: Path) -> None:
        """All of it; `read_evaluation` reads it."""
        figures = None if self.figures is None else self.figures.text()
        atomic.write_json(path, {**self.as_json(), "figures": figures})

    @property
    def candidate(self) -> Candidate:
        """For the frontier of those that one fit judged: on the same rows, beside the same parent."""
        up, down = (self.drop - self.drop_low) / 100, (self.drop_high - self.drop) / 100
        return Candidate(
            self.value, self.value - down, self.value + up, self.mb, self.timing.ms, "validation", figures=self.figures
        )


def read_evaluation(path: Path, folder: Path) -> Evaluation:
    """What was written of a model, whose folder this is. Raises UserError for what is no such file."""
    found = safe.read_json(path, 1 << 22)
    try:
        return _judged(found, folder)
    except (KeyError, TypeError, ValueError):
        do = "remove it; the model will be evaluated again"
        raise UserError("not a valid evaluation file", where=str(path), do=do) from None


def _judged(found: Mapping[str, Any], folder: Path) -> Evaluation:
    figures = None if found.get("figures") is None else ResampledMetric.parse(found["figures"])
    plan, timing = Plan.from_json(found["plan"]), Timing.from_json(found["timing"])
    return Evaluation(**{**found, "figures": figures, "plan": plan, "timing": timing, "folder": folder})


class Evaluator:
    """Compares what is made with one parent. rows: of validation.  timer: measures calls in turn.  predict: where
    another machine serves, what a plan takes there; nothing is timed here then."""

    def __init__(
        self,
        parent: LoadedModel,
        serving: Serving,
        rows: Rows,
        *,
        task: str,
        settings: Any,
        max_length: int,
        timer: Timer = measure_interleaved,
        predict: Callable[[Plan], Timing] | None = None,
    ) -> None:
        self.serving, self.max_length, self.timer, self.predict = serving, max_length, timer, predict
        self.how: dict[str, Any] = {"device": serving.device, "task": task, "settings": settings}
        self.rows = rows if len(rows) <= JUDGED else rows.take(np.linspace(0, len(rows) - 1, JUDGED).astype(int))
        reference = Predictor(parent.path, runtime="torch", **self.how)
        self.task, self.names = reference.task, reference.label_names
        self.metric = self.task.choose_metrics(self.names)[0]
        self.examples = reference.encode_rows(self.rows, max_length=max_length)
        self.theirs = reference.logits(self.examples)
        self.scored: ScoredAnswers = self.score(self.theirs, self.examples)
        self.parent_bytes = content(parent.model) if serving.writes else None
        self.least = self.typical = math.inf
        self.parent_call = build_parts(parent.model, serving, self.parent_bytes)
        self.parent_mb = (len(self.parent_bytes) if self.parent_bytes else weights_bytes(parent.path)) / MB

    @property
    def value(self) -> float:
        """The parent's main metric on these rows."""
        return self.scored.value(self.metric)

    def score(self, logits: np.ndarray, examples: Examples) -> ScoredAnswers:
        """A model's answers to these rows, beside the parent's where rows have no labels."""
        return self.task.score_against(logits, self.theirs, self.names, examples, self.rows)

    def find_timing(self, plan: Plan, predictor: Predictor, *how: Any) -> Timing:
        """What a made plan takes: predicted for a target, else measured. how: as of `measure_timing`."""
        return self.measure_timing(predictor, *how) if self.predict is None else self.predict(plan)

    def measure_timing(
        self,
        predictor: Predictor,
        repeats: int = REPEATS,
        seconds: float = SECONDS,
        attempts: int = 2,
        pace: float = STEADY,
    ) -> Timing:
        """Beside the parent, in turn; again where something else used the processor, or the parent was `pace` times as
        slow as usual. What our own model took does not count for which one counts: the first that needs no other, else
        the one of a quiet machine where the parent was fastest, else the last."""
        call = self._parts(predictor)
        tries: list[Timing] = []
        while len(tries) < attempts:
            tries.append(self.beside_parent(call, repeats, seconds))
            if tries[-1].quiet and tries[-1].behind <= pace:
                return replace(tries[-1], attempts=len(tries))
        quiet = [t for t in tries if t.quiet]
        return replace(min(quiet, key=lambda t: t.parent_p50) if quiet else tries[-1], attempts=len(tries))

    def _parts(self, predictor: Predictor) -> Parts:
        if self.serving.texts is not None:
            return list(TextCalls.of(self.serving.texts.sample, predictor).parts(predictor))
        batch = build_batch(predictor.config, self.serving)
        return [lambda: predictor(batch)]

    def beside_parent(self, call: Parts, repeats: int, seconds: float) -> Timing:
        """Any call that answers a batch, or the texts, in parts as of `build_parts`."""
        both = self.timer([self.parent_call, call], device=self.serving.device, repeats=repeats, seconds=seconds)
        theirs, ours = (mean_over_texts(self.serving, one) for one in both)
        texts = None if self.serving.texts is None else TextLatency.of(ours)
        found = Timing.of(ours, theirs, self.least, self.typical, texts)
        self.remember(found)
        return found

    def remember(self, timing: Timing) -> None:
        """The parent at its best, also of an earlier session."""
        self.least, self.typical = min(self.least, timing.parent_least), min(self.typical, timing.parent_typical)

    def evaluate(self, name: str, plan: Plan, folder: Path, begun: float, steps: int = 0) -> Evaluation:
        """Of a model folder. begun: when its making began, by the monotonic clock.  steps: that it was trained for."""
        predictor = Predictor(folder, runtime=self.runtime(folder), **self.how)
        examples = predictor.encode_rows(self.rows, max_length=self.max_length)
        logits = predictor.logits(examples)
        scored = self.score(logits, examples)
        lost = self.scored.difference(scored, self.metric, resamples=1000)
        figures = None
        if self.metric in scored.metrics:
            figures = resample_metric(scored.rows, scored.metrics[self.metric], metric=self.metric, data="validation")
        return Evaluation(
            name, plan, folder, sum(map(weights_bytes, predictor.files)) / MB, self.find_timing(plan, predictor),
            scored.value(self.metric), 100 * lost.value, 100 * lost.low, 100 * lost.high,
            compute_kl_to_parent(self.task, (logits, examples), (self.theirs, self.examples), self.names, self.rows),
            time.monotonic() - begun, steps, figures,
        )  # fmt: skip

    def runtime(self, folder: Path):
        """What answers with a made folder: of a float model torch does, where integers would be computed in it."""
        from compress.modelfolder.folder import inspect

        if self.serving.runtime == "torch-int8" and inspect(folder).config.quantization is None:
            return "torch"
        return self.serving.runtime


def share_timings(judged: Sequence[Evaluation]) -> list[Evaluation]:
    """The same, models of one plan with one timing: they compute the same, whatever they were trained for, so that what
    tells their times apart is scatter, by which a trained one must not lose to itself untrained. It is the middle one
    of those on a quiet machine, if there are any."""
    timings: dict[str, list[Timing]] = {}
    for one in judged:
        timings.setdefault(one.plan.key, []).append(one.timing)
    middle = {}
    for key, found in timings.items():
        able = sorted([t for t in found if t.quiet] or found, key=lambda t: t.ms)
        middle[key] = able[(len(able) - 1) // 2]
    return [replace(one, timing=middle[one.plan.key]) for one in judged]


def best_of(judged: Sequence[Evaluation]) -> Evaluation:
    """The one to take of several that are within their bounds: of those whose metric is within a standard error of the
    best, the one whose answers are nearest to the parent's, which a thousand rows tell apart much better."""
    best = max(judged, key=lambda j: j.value)
    error = max(0.05, (best.drop_high - best.drop_low) / 4)
    return min((j for j in judged if j.drop - best.drop <= error), key=lambda j: j.apart)

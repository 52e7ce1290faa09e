"""Models on the same rows and the same machine: quality, size, operations, latency, throughput, memory.

All models of one call are timed in turn (A B A B ...), so their ratios hold on a machine whose speed drifts, and are
scored on the same rows, so that the difference to the reference is a paired one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from compress.contracts import FAKE, Batch, FixedLength, LatencyShape, Measurement, Watch, unwatched
from compress.data.batches.examples import Examples
from compress.data.tables.groups import groups
from compress.data.tables.table import Rows
from compress.data.task import Fidelity, ScoredAnswers
from compress.data.tasks import classification
from compress.encoder.integers.fake_quantized import integer_megabytes
from compress.errors import UserError, printable
from compress.measure.calibration import Calibration, calibration, fitting_rows
from compress.measure.operations import count_gflops
from compress.modelfolder.ensemble import Ensemble
from compress.modelfolder.sentence_files import identity
from compress.onnx.runtimes import Runtime
from compress.predict.cascade import open_predictor
from compress.predict.fastest import require_same_answers
from compress.predict.predictor import EnsemblePredictor, Predictor, build_fixed_batch
from compress.predict.real_texts import TextCalls, TextLatency, TextSample, choose_calls, mean_of_calls, sample_texts
from compress.recipe.schema import LatencySpec
from compress.stages.shared.task_head import check_same_task
from compress.training.precision import Precision
from evaluation.cost.device import describe
from evaluation.cost.energy import find_counters, measure_energy
from evaluation.cost.latency import Latency, compare_latencies, find_synchronize, measure_interleaved
from evaluation.cost.memory import peak_memory_mb
from evaluation.cost.size import MB, count_parameters, weights_bytes
from evaluation.quality.churn import Group
from evaluation.quality.estimates import estimate_metric
from evaluation.quality.gaps import Gap, find_largest_gap
from evaluation.quality.intervals import Interval, bootstrap_rows
from evaluation.quality.paired import exact_sign_test
from evaluation.quality.pairing import ResampledMetric
from evaluation.quality.pairing import resample_metric as kept_resamples
from evaluation.quality.slices import Members, Slice, slices


@dataclass(frozen=True)
class Subject:
    """A model to measure. role: teacher, student, control, of one teacher of several `member_role`, of a stage's model
    on the way `stage_role`.

    ensemble: several that answer together; folder is then that of their lead.  runtime: what computes this one's
    answers, where it is said.
    """

    name: str
    folder: Path
    role: str = "student"
    ensemble: Ensemble | None = None
    runtime: Runtime | None = None

    @cached_property
    def fingerprint(self) -> str:
        """`sentence_files.identity` of the folder: all weights are read once. Not for several that answer together."""
        return identity(self.folder)

    def predictor(self, **how: Any) -> Predictor:
        """What answers."""
        if self.runtime is not None:
            how = {**how, "runtime": self.runtime}
        return open_predictor(self.folder, **how) if self.ensemble is None else EnsemblePredictor(self.ensemble, **how)


_Taken = TypeVar("_Taken", Examples, Rows)
INTEGER_MB = "size/integer_mb"
"""The figure that only models have whose integers were computed in floats."""
QUALITY_KEPT, KEPT_ABOVE_CHANCE = "vs_teacher/quality_kept_pct", "vs_teacher/quality_kept_above_chance_pct"
ENERGY = "energy/joules_per_1000_texts"
"""Of the whole device, where its counters can be read."""
GAP = "groups/gap"
"""The largest difference of the main metric between two groups of rows, a share."""
MEMBER = "teacher-"


def member_role(place: int) -> str:
    """The role of one of several teachers, counted from 0."""
    return f"{MEMBER}{place + 1}"


STAGE = "stage-"


def stage_role(index: int) -> str:
    """The role of what a stage of the run made on the way to its result, counted from 0."""
    return f"{STAGE}{index}"


def kind_of(role: str) -> str:
    """teacher, student, control or stage: one of several teachers is a teacher."""
    return role.partition("-")[0]


def list_teachers(folder: Path, ensemble: Ensemble | None) -> list[Subject]:
    """Whoever taught as subjects: the reference, which is all of several together, and then each of these."""
    if ensemble is None:
        return [Subject("teacher", folder, "teacher")]
    each = [Subject(f"teacher {i + 1}", m.folder, member_role(i)) for i, m in enumerate(ensemble.members)]
    return [Subject("teacher ensemble", folder, "teacher", ensemble), *each]


@dataclass(frozen=True)
class MeasuredModel:
    """A subject with its figures. scored: its answers, from which any of them can be resampled.  metric: the one of
    the task that decides; None where nothing was scored.  churn: rows answered otherwise than by the teacher.  slices:
    the metric on groups of rows, against the teacher where there is one.  resampled: the metric on resamples of the
    rows, by which other runs are paired with it.  groups: the metric on the groups of one
    column, whose gaps are of interest.  document: of a model that another process measured, what `as_json` gave."""

    subject: Subject
    measurement: Measurement
    scored: ScoredAnswers | None = None
    metric: str | None = None
    churn: Sequence[Group] = ()
    calibration: Calibration | None = None
    slices: Sequence[Slice] = ()
    resampled: ResampledMetric | None = None
    groups: Sequence[Slice] = ()
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
            return {"folder": str(self.subject.folder)}
        shares = [{"name": m.name, "folder": str(m.folder), "weight": m.weight} for m in ensemble.members]
        return {"folder": None, "members": shares, "combine": ensemble.combine}


@dataclass(frozen=True)
class CostPlan:
    """How cost is measured: real rows for throughput; for latency the texts of the data, or, where it is given,
    sequences of `length` random tokens. texts: other texts than those of the rows that are scored."""

    batch: int = 1
    length: int | None = None
    texts: TextSample | None = None
    repeats: int = 50
    warmup: int = 5
    throughput_rows: int = 512
    seconds: float = 10.0


def measure(
    subjects: Sequence[Subject],
    rows: Rows,
    *,
    task: str,
    dataset: str,
    digest: str,
    max_length: int,
    cost: CostPlan,
    bootstrap: int = 1000,
    device: str = "cpu",
    precision: Precision = "auto",
    settings: Mapping[str, Any] | None = None,
    held: Rows | None = None,
    runtime: Runtime | None = None,
    sliced: Sequence[str] | None = None,
    group_column: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    watch: Watch = unwatched,
) -> list[MeasuredModel]:
    """Measure every subject on labelled `rows` of one split; the first subject of role teacher is the reference.

    task: the kind of the data.  settings: of the task, in place of the models' own.  held: other labelled rows, that
    a temperature is fitted on.  runtime: of all of them;
    None: of each as its folder is meant to be run.  sliced: by what rows are told apart (`data.grouping.groups`).
    group_column: of the groups that are compared with each other.
    say, watch: print what is done, and show how far it is.
    Raises UserError when a model does not do it, or two answer different labels.
    """
    how: dict[str, Any] = {"device": device, "precision": precision, "task": task, "settings": settings}
    how["runtime"] = runtime
    predictors = [s.predictor(**how) for s in subjects]
    for subject, predictor in zip(subjects, predictors, strict=True):
        check_same_task(predictor.head, predictor.label_names, task, str(subject.folder))
    for subject, predictor in zip(subjects, predictors, strict=True):
        if subject.role.startswith(MEMBER):
            predictor.answer_in_order_of(predictors[0].label_names)
    require_same_labels(subjects, predictors)
    answered = [_answer(s, p, rows, max_length, say, watch) for s, p in zip(subjects, predictors, strict=True)]
    reference = next((i for i, s in enumerate(subjects) if s.role == "teacher"), None)
    if predictors[0].task.label_free and reference is not None:
        parent = answered[reference]
        answered = [
            a if a is parent else _scored_against(p, a, parent, rows) for p, a in zip(predictors, answered, strict=True)
        ]
    encoded = [a.examples for a in answered]
    metric = predictors[0].task.choose_metrics(predictors[0].label_names)[0]
    if cost.length is None and cost.texts is None:
        calls = choose_calls([s.folder for s in subjects])
        texts = sample_texts(rows, data=dataset, digest=digest, max_length=max_length, batch=cost.batch, calls=calls)
        cost = replace(cost, texts=texts)
    say("timing " + ", ".join(s.name for s in subjects))
    costs = measure_cost(predictors, [sample_rows(e, cost.throughput_rows) for e in encoded], cost, watch)
    apart = groups(predictors[0].task, rows, predictors[0].label_names, sliced)
    compared: list[Members] = []
    if group_column is not None:
        names = predictors[0].label_names
        compared = groups(predictors[0].task, rows, names, [group_column], flag="group column")
    held = fitting_rows(held)
    measured = []
    for i, subject in enumerate(subjects):
        scored = answered[i].scored
        calibrated = _calibrated(predictors[i], answered[i], rows, held, max_length, bootstrap)
        values = {**quality(scored, bootstrap), **costs[i].measurement.values}
        values |= score_fake_quantized(predictors[i], answered[i].examples, rows)
        context = {**costs[i].measurement.context, "dataset": dataset, "dataset_digest": digest, "rows": str(len(rows))}
        context |= {"task": task, "metric": metric}
        if "f1_binary" in scored.metrics:
            context["positive_label"] = predictors[0].label_names[1]
        for name, why in scored.undefined.items():
            say(f"{subject.name}: {name} is undefined: {why}")
        if reference is not None and i != reference:
            theirs = answered[reference]
            values |= compare_quality(scored, theirs.scored, metric, bootstrap)
            values |= compute_similarity(_compare(predictors[i], answered[i], theirs, rows), bootstrap)
            values |= compute_retained_quality(scored, theirs.scored, metric) | cost_ratios(costs[i], costs[reference])
        flips = (
            () if reference is None or i == reference else _churn(predictors[i], answered[i], answered[reference], rows)
        )
        if calibrated is not None and calibrated.values:
            values |= calibrated.values
        parent = None if reference is None or i == reference else answered[reference].scored
        told_apart = _sliced(compared, scored, parent, metric)
        if group_column is not None:
            context["group_column"] = group_column
            values |= _gap_figures(find_largest_gap(told_apart))
        if predictors[i].simulates_integers:
            values = rename_simulated(values) | {INTEGER_MB: integer_megabytes(predictors[i].model)}
        rest = _sliced(apart, scored, parent, metric), _resampled(scored, metric, context), told_apart
        measured.append(MeasuredModel(subject, Measurement(values, context), scored, metric, flips, calibrated, *rest))
    return measured


def _sliced(
    apart: Sequence[Members], ours: ScoredAnswers, theirs: ScoredAnswers | None, metric: str
) -> Sequence[Slice]:
    """The main metric on each group of rows; nothing where it is undefined on all of them."""
    if metric not in ours.metrics:
        return ()
    parent = None if theirs is None or metric not in theirs.metrics else theirs.answers(metric)
    return slices(apart, ours.answers(metric), parent)


def _gap_figures(gap: Gap | None) -> dict[str, float]:
    """The largest gap between groups, by MLflow name; nothing where it is not known."""
    return {} if gap is None else _with_interval(GAP, gap.value) | {"groups/too_small": float(gap.small)}


def _resampled(scored: ScoredAnswers, metric: str, context: Mapping[str, str]) -> ResampledMetric | None:
    if metric not in scored.metrics:
        return None
    data = f"{context['dataset_digest']}/{context['dataset'].rpartition('/')[2]}"
    return kept_resamples(scored.rows, scored.metrics[metric], metric=metric, data=data)


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


@dataclass(frozen=True)
class _Answered:
    """A subject's encoded rows, its outputs for them, and how good they are."""

    examples: Examples
    logits: np.ndarray
    scored: ScoredAnswers


def _answer(
    subject: Subject, predictor: Predictor, rows: Rows, max_length: int, say: Callable[[str], None], watch: Watch
) -> _Answered:
    say(f"scoring {subject.name} on {len(rows)} rows")
    examples = predictor.encode_rows(rows, max_length=max_length)
    for note in examples.notes:
        say(f"{subject.name}: {note}")
    require_same_answers(predictor, examples, "the data")
    with watch(f"scoring {subject.name}", len(examples), "rows") as progress:
        logits = predictor.logits(examples, told=progress.update)
    return _Answered(examples, logits, predictor.task.score(logits, predictor.label_names, examples, rows))


def _scored_against(predictor: Predictor, ours: _Answered, parent: _Answered, rows: Rows) -> _Answered:
    """Rows without labels are scored by the parent's answers."""
    task, names = predictor.task, predictor.label_names
    return replace(ours, scored=task.score_against(ours.logits, parent.logits, names, ours.examples, rows))


def _compare(predictor: Predictor, ours: _Answered, theirs: _Answered, rows: Rows) -> Fidelity:
    """How alike two models answer; nothing where their tokenizers cut the rows differently."""
    if len(ours.logits) != len(theirs.logits):
        return Fidelity(len(rows), {})
    return predictor.task.compare(ours.logits, theirs.logits, predictor.label_names, ours.examples, rows)


def _calibrated(
    predictor: Predictor, ours: _Answered, rows: Rows, held: Rows | None, max_length: int, bootstrap: int
) -> Calibration | None:
    """Whether its probabilities mean what they say, as they are and with a temperature fitted on `held`; None for kinds
    of task without one answer a row."""
    task, fitted = predictor.task, None
    if not isinstance(task, classification.Task):
        return None
    if held is not None:
        examples = predictor.encode_rows(held, max_length=max_length)
        fitted = task.pool_chunks(predictor.logits(examples), examples), np.asarray(held.labels)
    logits = task.pool_chunks(ours.logits, ours.examples)
    return calibration(logits, np.asarray(rows.labels), task.temperature, fitted, bootstrap=bootstrap)


def _churn(predictor: Predictor, ours: _Answered, theirs: _Answered, rows: Rows) -> Sequence[Group]:
    """Which rows changed; nothing where their tokenizers cut the rows differently."""
    if ours.logits.shape != theirs.logits.shape:
        return ()
    return predictor.task.churn(ours.logits, theirs.logits, predictor.label_names, ours.examples, rows)


def require_same_labels(subjects: Sequence[Subject], predictors: Sequence[Predictor]) -> None:
    """Raise UserError unless all models answer the labels of the first, in its order."""
    first = predictors[0].label_names
    for subject, predictor in zip(subjects, predictors, strict=True):
        if predictor.label_names != first:
            raise UserError(
                f"{subject.name} and {subjects[0].name} predict different labels",
                where=str(subject.folder),
                why=printable(f"{', '.join(predictor.label_names)} versus {', '.join(first)}", 200),
                do="compare models with the same labels",
            )


def quality(scored: ScoredAnswers, bootstrap: int) -> dict[str, float]:
    """Every metric of the task with its 95 % interval, and its baselines, by MLflow name."""
    values: dict[str, float] = {}
    for name in scored.metrics:
        values |= _with_interval(f"quality/{name}", scored.interval(name, resamples=bootstrap))
    return values | {f"quality/{name}": value for name, value in scored.baselines.items()}


def score_fake_quantized(predictor: Predictor, examples: Examples, rows: Rows) -> dict[str, float]:
    """Of a quantized model whose file was measured: what the model scores with its numbers rounded and multiplied as
    floats, under names of its own; nothing of others."""
    if predictor.runtime == "torch" or predictor.config.quantization is None:
        return {}
    logits = predictor.with_runtime("torch").logits(examples)
    scored = predictor.task.score(logits, predictor.label_names, examples, rows)
    return {f"fake_quantized/{name}": scored.value(name) for name in scored.metrics}


def compare_quality(ours: ScoredAnswers, theirs: ScoredAnswers, metric: str, bootstrap: int) -> dict[str, float]:
    """The paired difference in the main metric, by MLflow name; McNemar's p-value where rows are right or wrong."""
    if metric not in ours.metrics or metric not in theirs.metrics:
        return {}
    difference = ours.difference(theirs, metric, resamples=bootstrap)
    values = _with_interval(f"vs_teacher/{metric}_difference", difference)
    mine, other = ours.answers(metric).right, theirs.answers(metric).right
    if mine is not None and other is not None:
        wins, losses = int((mine & ~other).sum()), int((other & ~mine).sum())
        values["vs_teacher/p_value"] = exact_sign_test(wins, losses)
    return values


def compute_similarity(alike: Fidelity, bootstrap: int) -> dict[str, float]:
    """How alike model and teacher answer, by MLflow name; shares in percent."""
    values = {f"vs_teacher/{name}": value for name, value in alike.values.items()}
    for name, figure in alike.figures.items():
        interval = bootstrap_rows if name == "kl" else estimate_metric  # a divergence is not at best 1
        found = interval(alike.rows, figure, resamples=bootstrap)
        share = name == "agreement"
        values |= _with_interval(f"vs_teacher/{name}{'_pct' * share}", found, 100.0 if share else 1.0)
    return values


def compute_retained_quality(ours: ScoredAnswers, theirs: ScoredAnswers, metric: str) -> dict[str, float]:
    """Percent of the teacher's main metric, and of what it has above chance where chance is not 0; left out where the
    teacher has nothing above zero, or above chance."""
    reference, value, chance = theirs.value(metric), ours.value(metric), ours.chance.get(metric, 0.0)
    if not (reference > 0 and np.isfinite(value)):
        return {}
    found = {QUALITY_KEPT: 100 * value / reference}
    if chance > 0 and reference > chance:
        found[KEPT_ABOVE_CHANCE] = 100 * (value - chance) / (reference - chance)
    return found


def _with_interval(key: str, found: Interval, scale: float = 1.0) -> dict[str, float]:
    return {key: scale * found.value, f"{key}_low": scale * found.low, f"{key}_high": scale * found.high}


@dataclass(frozen=True)
class Cost:
    """What a model takes. latency: of a batch of the planned shape, on average over the texts.  pass_: of all the
    sampled rows, packed."""

    measurement: Measurement
    latency: Latency
    pass_: Latency


class _Shaped:
    """A model with what its latency is of. shape: the condition.  tokens: lengths of the texts, for people; empty for
    random tokens of one length."""

    def __init__(self, predictor: Predictor, cost: CostPlan, length: int) -> None:
        self.predictor, self.tokens = predictor, ""
        self._texts = None if cost.texts is None else TextCalls.of(cost.texts, predictor)
        if self._texts is None:
            self.shape: LatencyShape = FixedLength(cost.batch, length)
            self._batches = [build_fixed_batch(predictor.config, cost.batch, length).to(predictor.device)]
        else:
            self.shape, self.tokens = self._texts.sample.shape, self._texts.describe()
            self._batches = [batch for each in self._texts.batches for batch in each]

    def calls(self) -> list[Callable[[], Any]]:
        """What is timed, part by part."""
        return [lambda: self.predictor(self._batches[0])] if self._texts is None else self._texts.parts(self.predictor)

    def read(self, found: Latency) -> tuple[Latency, dict[str, float]]:
        """found: of `calls`. The same of one call, and the speeds, by MLflow name."""
        if self._texts is None:
            return found, known_speeds(found)
        speeds = text_speeds(TextLatency.of(found)) if found.is_known else {}
        return mean_of_calls(found, len(self._texts.tokens)), speeds

    def gflops(self) -> float:
        """10⁹ operations of a sequence, on average."""
        batches = self._batches if self._texts is not None else [replace_rows(self._batches[0], 1)]
        return count_gflops(self.predictor.model, batches, self.predictor.device)


def cost_ratios(ours: Cost, teacher: Cost) -> dict[str, float]:
    """Times smaller and faster than the teacher, by MLflow name; both were measured in one call of `measure_cost`.

    A speed that a busy machine kept from being known has no ratio.
    """
    mine, other = ours.measurement.values, teacher.measurement.values
    found = {
        "vs_teacher/size_ratio": other["size/disk_mb"] / mine["size/disk_mb"],
        "vs_teacher/params_ratio": other["size/params_m"] / mine["size/params_m"],
    }
    speedup = compare_latencies(teacher.latency, ours.latency)
    rows = compare_latencies(teacher.pass_, ours.pass_)
    for key, ratio in (("vs_teacher/speedup", speedup), ("vs_teacher/throughput_ratio", rows)):
        if ratio is not None:
            found |= {key: ratio.value, f"{key}_low": ratio.low, f"{key}_high": ratio.high}
    return found


def measure_cost(
    predictors: Sequence[Predictor], samples: Sequence, cost: CostPlan, watch: Watch = unwatched
) -> list[Cost]:
    """Size, operations, latency, throughput and memory of each model. Speeds that a busy machine kept from being known
    are left out.

    samples: per model, encoded rows with the lengths of real input; throughput is that of `Predictor.batches` of them.
    """
    device = predictors[0].device
    # One length for all: others would not compare.
    length = min([cost.length or LatencySpec().tokens, *(p.max_length for p in predictors)])
    shaped = [_Shaped(p, cost, length) for p in predictors]
    with watch("timing latency", None, "rounds") as progress:
        latencies = measure_interleaved(
            [one.calls() for one in shaped],
            device=device,
            warmup=cost.warmup,
            repeats=cost.repeats,
            seconds=cost.seconds,
            told=progress.update,
        )
    mixes = [[b.to(device) for b in p.batches(s)] for p, s in zip(predictors, samples, strict=True)]
    passes = [lambda p=p, m=m: [p(b) for b in m] for p, m in zip(predictors, mixes, strict=True)]
    parts = [[lambda p=p, b=b: p(b) for b in m] for p, m in zip(predictors, mixes, strict=True)]
    with watch("timing throughput", None, "rounds") as progress:
        how: dict[str, Any] = {"device": device, "seconds": cost.seconds, "told": progress.update}
        throughputs = measure_interleaved(parts, warmup=1, repeats=5, **how)
    counters, wait = find_counters(device), find_synchronize(device)
    results = []
    for i, p in enumerate(predictors):
        count = count_parameters(p.model, p.model.embedding_parameter_names())
        latency, speeds = shaped[i].read(latencies[i])
        values = {
            "size/disk_mb": sum(map(weights_bytes, p.files)) / MB,
            "size/params_m": count.total / MB,
            "size/params_no_embedding_m": count.without_embedding / MB,
            "speed/gflops": shaped[i].gflops(),
            **speeds,
            **known_throughput(throughputs[i], len(samples[i])),
            "memory/peak_mb": peak_memory_mb(passes[i], device),
            "memory/weights_mb": count.bytes / MB,
        }
        context = _context(shaped[i], latencies[i], samples[i])
        # The energy of other programs would count as the model's.
        if counters.found and throughputs[i].is_known and throughputs[i].clock == "wall time":
            joules = measure_energy(lambda i=i: (passes[i](), wait and wait()), counters.found)
            if joules is not None:
                values[ENERGY] = 1000 * joules / len(samples[i])
                context["energy_of"] = counters.names
        results.append(Cost(Measurement(values, context), latency, throughputs[i]))
    return results


def known_speeds(latency: Latency) -> dict[str, float]:
    """What is known of calls of one length, by MLflow name. Processor time says how long a call takes, not how late it
    may come."""
    found = {"speed/latency_p50_ms": latency.p50} if latency.is_known else {}
    if latency.clock == "wall time":
        found |= {"speed/latency_p95_ms": latency.p95, "speed/latency_p99_ms": latency.p99}
    return found


def text_speeds(found: TextLatency) -> dict[str, float]:
    """Over the texts of the data, by MLflow name."""
    return {
        "speed/latency_p50_ms": found.p50,
        "speed/latency_p95_ms": found.p95,
        "speed/latency_mean_ms": found.mean,
        "speed/tokenization_ms": found.tokenization,
    }


def known_throughput(pass_: Latency, rows: int) -> dict[str, float]:
    """Rows a second, by MLflow name, where the pass over them is known."""
    return {"speed/throughput_sps": rows / (pass_.p50 / 1000)} if pass_.is_known else {}


def _context(shaped: _Shaped, latency: Latency, sample) -> dict[str, str]:
    p = shaped.predictor
    here = describe(p.device)
    return {
        **here,
        "runtime": p.computed_by,
        "precision": p.computed_in,
        "serving_precision": p.precision,
        "latency_shape": str(shaped.shape),
        **({"latency_tokens": shaped.tokens} if shaped.tokens else {}),
        "throughput_mix": f"{len(sample)} rows, mean {sample.lengths.mean():.1f} tokens, up to {p.max_tokens} at once",
        "repeats": str(latency.repeats),
        "clock": latency.clock,
        "contaminated": "no" if latency.is_known else "yes",
    }


def replace_rows(batch: Batch, rows: int) -> Batch:
    """The first `rows` sequences of a packed batch."""
    end = int(batch.cu_seqlens[rows])
    return replace(
        batch,
        input_ids=batch.input_ids[:end],
        segment_ids=batch.segment_ids[:end],
        position_ids=batch.position_ids[:end],
        cu_seqlens=batch.cu_seqlens[: rows + 1],
        row_ids=batch.row_ids[:rows],
    )


def sample_rows(examples: _Taken, rows: int) -> _Taken:
    """Evenly spaced rows, or all of them: the lengths of real input, the same rows for every model."""
    if len(examples) <= rows:
        return examples
    return examples.take(np.linspace(0, len(examples) - 1, rows).astype(int))

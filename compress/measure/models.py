"""Models on the same rows and the same machine: quality, size, operations, latency, throughput, memory.

All models of one call are timed in turn (A B A B ...), so their ratios hold on a machine whose speed drifts, and are
scored on the same rows, so that the difference to the reference is a paired one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compress.contracts import Measurement, Watch, unwatched
from compress.data.batches.examples import Examples
from compress.data.tables.groups import groups
from compress.data.tables.label_order import have_same_labels, is_unnamed
from compress.data.tables.table import Rows
from compress.data.task import Fidelity, ScoredAnswers
from compress.data.tasks import classification
from compress.encoder.integers.fake_quantized import integer_megabytes
from compress.errors import UserError, printable
from compress.measure.calibration import Calibration, calibration, fitting_rows
from compress.measure.cost import CostPlan, cost_ratios, measure_cost, sample_examples
from compress.measure.measured_model import INTEGER_MB, MeasuredModel, rename_simulated
from compress.measure.quality import (
    compare_quality,
    compute_retained_quality,
    compute_similarity,
    gap_figures,
    quality,
    score_fake_quantized,
)
from compress.measure.subject import MEMBER, Subject, shown_name
from compress.onnx.runtimes import Runtime
from compress.predict.cascade import CascadePredictor
from compress.predict.fastest import require_same_answers
from compress.predict.predictor import Predictor
from compress.predict.real_texts import choose_calls, sample_texts
from compress.stages.shared.task_head import check_same_task
from compress.training.precision import Precision
from evaluation.quality.churn import Group
from evaluation.quality.gaps import find_largest_gap
from evaluation.quality.pairing import ResampledMetric
from evaluation.quality.pairing import resample_metric as kept_resamples
from evaluation.quality.slices import Members, Slice, slices


def measure(
    subjects: Sequence[Subject],
    rows: Rows,
    *,
    task: str,
    label_names: Sequence[str],
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
    reference_name: str = "teacher",
    say: Callable[[str], None] = lambda _: None,
    watch: Watch = unwatched,
) -> list[MeasuredModel]:
    """Measure every subject on labelled `rows` of one split; the first subject of role teacher is the reference.

    task: the kind of the data.  label_names: of the data.  settings: of the task, in place of the models' own.  held:
    other labelled rows, that a temperature is fitted on.  runtime: of all of them; None: of each as its folder is meant
    to be run.  sliced: by what rows are told apart (`data.tables.groups.groups`).  group_column: of the groups that are
    compared with each other.  reference_name: what is printed for a subject called teacher.  say, watch: print what is
    done, and show how far it is.

    Raises UserError when a model does not do it, or two answer different labels.
    """
    how: dict[str, Any] = {"device": device, "precision": precision, "settings": settings, "runtime": runtime}
    predictors = _open(subjects, task, label_names, **how)
    kind, names = predictors[0].task, predictors[0].label_names
    shown = [shown_name(s, reference_name) for s in subjects]
    answered = [_answer(s, p, rows, max_length, say, watch) for s, p in zip(shown, predictors, strict=True)]
    reference = next((i for i, s in enumerate(subjects) if s.role == "teacher"), None)
    given = rows.taught if kind.label_free and isinstance(rows.taught, np.ndarray) else None
    if given is not None:
        answered = [_scored_against(p, a, given, rows) for p, a in zip(predictors, answered, strict=True)]
    elif kind.label_free and reference is not None:
        parent = answered[reference]
        answered = [
            a if a is parent else _scored_against(p, a, parent.logits, rows)
            for p, a in zip(predictors, answered, strict=True)
        ]
    metric = kind.choose_metrics(names)[0]
    if cost.length is None and cost.texts is None:
        calls = choose_calls([s.folder for s in subjects])
        texts = sample_texts(rows, data=dataset, digest=digest, max_length=max_length, batch=cost.batch, calls=calls)
        cost = replace(cost, texts=texts)
    if cost.timed:
        say("timing " + ", ".join(shown))
    samples = sample_examples([a.examples for a in answered], cost.throughput_rows, single_texts=kind.label_free)
    costs = measure_cost(predictors, samples, cost, watch)
    apart = groups(kind, rows, names, sliced)
    compared = [] if group_column is None else groups(kind, rows, names, [group_column], flag="group column")
    held = fitting_rows(held)
    measured = []
    for i, (subject, predictor, ours) in enumerate(zip(subjects, predictors, answered, strict=True)):
        theirs = None if reference is None or i == reference else answered[reference]
        parent = None if theirs is None else theirs.scored
        scored = ours.scored
        calibrated = _calibrated(predictor, ours, rows, held, max_length, bootstrap)
        values = {**quality(scored, bootstrap), **costs[i].measurement.values}
        values |= score_fake_quantized(predictor, ours.examples, rows)
        context = {**costs[i].measurement.context, "dataset": dataset, "dataset_digest": digest, "rows": str(len(rows))}
        context |= {"task": task, "metric": metric}
        if "f1_binary" in scored.metrics:
            context["positive_label"] = names[1]
        for name, why in scored.undefined.items():
            say(f"{subject.name}: {name} is undefined: {why}")
        if theirs is not None and reference is not None:
            values |= _compare_with_teacher(predictor, ours, theirs, rows, metric, bootstrap)
            values |= cost_ratios(costs[i], costs[reference])
        if given is not None:
            alike = predictor.task.compare(ours.logits, given, names, ours.examples, rows)
            values |= compute_similarity(alike, bootstrap)
        if calibrated is not None and calibrated.values:
            values |= calibrated.values
        by_column = _sliced(compared, scored, parent, metric)
        if group_column is not None:
            context["group_column"] = group_column
            values |= gap_figures(find_largest_gap(by_column))
        if predictor.simulates_integers:
            values = rename_simulated(values) | {INTEGER_MB: integer_megabytes(predictor.model)}
        measured.append(
            MeasuredModel(
                subject,
                Measurement(values, context),
                scored,
                metric,
                churn=() if theirs is None else _churn(predictor, ours, theirs, rows),
                calibration=calibrated,
                slices=_sliced(apart, scored, parent, metric),
                resampled=_resampled(scored, metric, context),
                groups=by_column,
                by_model=ours.by_model,
            )
        )
    return measured


def _open(subjects: Sequence[Subject], task: str, label_names: Sequence[str], **how: Any) -> list[Predictor]:
    """What answers for each subject. Raises UserError where one is for another task, or two have different labels."""
    predictors = [s.predictor(task=task, **how) for s in subjects]
    for subject, predictor in zip(subjects, predictors, strict=True):
        check_same_task(predictor.head, predictor.label_names, task, str(subject.folder))
    for subject, predictor in zip(subjects, predictors, strict=True):
        if subject.role.startswith(MEMBER):
            predictor.answer_in_order_of(predictors[0].label_names)
    agree_on_labels(subjects, predictors, label_names)
    return predictors


def _sliced(
    apart: Sequence[Members], ours: ScoredAnswers, theirs: ScoredAnswers | None, metric: str
) -> Sequence[Slice]:
    """The main metric on each group of rows; nothing where it is undefined on all of them."""
    if metric not in ours.metrics:
        return ()
    parent = None if theirs is None or metric not in theirs.metrics else theirs.answers(metric)
    return slices(apart, ours.answers(metric), parent)


def _resampled(scored: ScoredAnswers, metric: str, context: Mapping[str, str]) -> ResampledMetric | None:
    if metric not in scored.metrics:
        return None
    data = f"{context['dataset_digest']}/{context['dataset'].rpartition('/')[2]}"
    return kept_resamples(scored.rows, scored.metrics[metric], metric=metric, data=data)


@dataclass(frozen=True)
class _Answered:
    """A subject's encoded rows, its outputs for them, and how good they are. by_model: as of `MeasuredModel`."""

    examples: Examples
    logits: np.ndarray
    scored: ScoredAnswers
    by_model: Sequence[int] = ()


def _answer(
    name: str, predictor: Predictor, rows: Rows, max_length: int, say: Callable[[str], None], watch: Watch
) -> _Answered:
    say(f"scoring {name} on {len(rows)} rows")
    examples = predictor.encode_rows(rows, max_length=max_length)
    for note in examples.notes:
        say(f"{name}: {note}")
    require_same_answers(predictor, examples, "the data")
    with watch(f"scoring {name}", len(rows), "rows") as progress:  # a row may be several examples
        logits = predictor.logits(examples, told=lambda done: progress.update(done * len(rows) // len(examples)))
    by_model = predictor.answered.tolist() if isinstance(predictor, CascadePredictor) else ()
    scored = predictor.task.score(logits, predictor.label_names, examples, rows)
    return _Answered(examples, logits, scored, by_model)


def _scored_against(predictor: Predictor, ours: _Answered, theirs: np.ndarray, rows: Rows) -> _Answered:
    """Rows without labels are scored by the answers of the parent (N, D), or by those that columns of the data hold."""
    task, names = predictor.task, predictor.label_names
    return replace(ours, scored=task.score_against(ours.logits, theirs, names, ours.examples, rows))


def _compare(predictor: Predictor, ours: _Answered, theirs: _Answered, rows: Rows) -> Fidelity:
    """How alike two models answer; nothing where their tokenizers cut the rows differently."""
    if len(ours.logits) != len(theirs.logits):
        return Fidelity(len(rows), {})
    return predictor.task.compare(ours.logits, theirs.logits, predictor.label_names, ours.examples, rows)


def _compare_with_teacher(
    predictor: Predictor, ours: _Answered, theirs: _Answered, rows: Rows, metric: str, bootstrap: int
) -> dict[str, float]:
    """Quality against the teacher, by MLflow name."""
    values = compare_quality(ours.scored, theirs.scored, metric, bootstrap)
    values |= compute_similarity(_compare(predictor, ours, theirs, rows), bootstrap)
    return values | compute_retained_quality(ours.scored, theirs.scored, metric, bootstrap)


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


def agree_on_labels(subjects: Sequence[Subject], predictors: Sequence[Predictor], label_names: Sequence[str]) -> None:
    """Give models without names for their labels (LABEL_0 …) those of the data, or else of the first model with names.

    label_names: of the data. Raises UserError unless all models then answer the labels of the first, in its order.
    """
    sides = [list(label_names), *(p.label_names for p in predictors)]
    names = next((side for side in sides if not is_unnamed(side)), [])
    for predictor in predictors:
        if len(names) == len(predictor.label_names) and is_unnamed(predictor.label_names):
            predictor.answer_in_order_of(names)
    first = predictors[0].label_names
    for subject, predictor in zip(subjects, predictors, strict=True):
        if not have_same_labels(predictor.label_names, first):
            raise UserError(
                f"{subject.name} and {subjects[0].name} predict different labels",
                where=str(subject.folder),
                why=printable(f"{', '.join(predictor.label_names)} versus {', '.join(first)}", 200),
                do="compare models with the same labels",
            )

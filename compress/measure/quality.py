"""Quality figures of scored answers, alone and against a teacher, by MLflow name."""

from __future__ import annotations

import numpy as np

from compress.data.batches.examples import Examples
from compress.data.tables.table import Rows
from compress.data.task import Fidelity, ScoredAnswers
from compress.measure.measured_model import GAP, KEPT_ABOVE_CHANCE, QUALITY_KEPT
from compress.predict.predictor import Predictor
from evaluation.quality.estimates import estimate_metric
from evaluation.quality.gaps import Gap
from evaluation.quality.intervals import Interval, bootstrap_rows
from evaluation.quality.paired import exact_sign_test


def gap_figures(gap: Gap | None) -> dict[str, float]:
    """The largest gap between groups, by MLflow name; nothing where it is not known."""
    return {} if gap is None else with_interval(GAP, gap.value) | {"groups/too_small": float(gap.small)}


def quality(scored: ScoredAnswers, bootstrap: int) -> dict[str, float]:
    """Every metric of the task with its 95 % interval, and its baselines, by MLflow name."""
    values: dict[str, float] = {}
    for name in scored.metrics:
        values |= with_interval(f"quality/{name}", scored.interval(name, resamples=bootstrap))
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
    values = with_interval(f"vs_teacher/{metric}_difference", difference)
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
        values |= with_interval(f"vs_teacher/{name}{'_pct' * share}", found, 100.0 if share else 1.0)
    return values


def compute_retained_quality(
    ours: ScoredAnswers, theirs: ScoredAnswers, metric: str, bootstrap: int
) -> dict[str, float]:
    """Percent of the teacher's main metric, and of what it has above chance where chance is not 0; left out where the
    teacher has nothing above zero, or is not measurably above chance: on a few rows the share could be anything."""
    reference, value, chance = theirs.value(metric), ours.value(metric), ours.chance.get(metric, 0.0)
    if not (reference > 0 and np.isfinite(value)):
        return {}
    found = {QUALITY_KEPT: 100 * value / reference}
    if chance > 0 and theirs.interval(metric, resamples=bootstrap).low > chance:
        found[KEPT_ABOVE_CHANCE] = 100 * (value - chance) / (reference - chance)
    return found


def with_interval(key: str, found: Interval, scale: float = 1.0) -> dict[str, float]:
    return {key: scale * found.value, f"{key}_low": scale * found.low, f"{key}_high": scale * found.high}

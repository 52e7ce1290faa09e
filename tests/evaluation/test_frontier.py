"""Which models are dominated: properties against plain loops, and what unlike rows may say of each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.frontier import Candidate, Verdict, frontier
from evaluation.quality.draws import of_mean
from evaluation.quality.pairing import resample_metric
from evaluation.quality.shares import paired_share_interval

ROWS = 60


def candidate(right: np.ndarray, size: float, latency: float | None, *, data="d", conditions="c", paired=True):
    figures = resample_metric(len(right), of_mean(right), metric="accuracy", data=data, resamples=200)
    low, high = np.quantile(figures.figures, [0.025, 0.975])
    low, high = min(low, figures.value), max(high, figures.value)
    return Candidate(figures.value, low, high, size, latency, data, conditions, figures if paired else None)


@st.composite
def models(draw, paired=True):
    found = []
    for _ in range(draw(st.integers(1, 8))):
        share = draw(st.sampled_from([0.2, 0.5, 0.8, 1.0]))
        random = np.random.default_rng(draw(st.integers(0, 5)))
        right = random.random(ROWS) < share
        size, latency = draw(st.integers(1, 4)), draw(st.sampled_from([1.0, 1.03, 1.2, 2.0, None]))
        conditions = draw(st.sampled_from(["a", "a", "b"]))
        made = candidate(right, size, latency, conditions=conditions, paired=paired and draw(st.booleans()))
        found.append(replace(made, shape=draw(st.sampled_from([None, "x", "y"]))))
    return found


def dominates(a: Candidate, b: Candidate, tolerance: float) -> bool:
    """The definition, word for word."""
    if a.conditions != b.conditions or a.data != b.data or a.size > b.size or a.quality < b.quality:
        return False
    faster = False
    if a.shape is None or a.shape != b.shape:
        if a.latency is None or b.latency is None or a.latency > b.latency * (1 + tolerance):
            return False
        faster = a.latency * (1 + tolerance) < b.latency
    if a.figures is not None and b.figures is not None:
        mine, other = a.figures.right, b.figures.right
        assert mine is not None
        assert other is not None
        wins, losses = int((mine & ~other).sum()), int((other & ~mine).sum())
        least = paired_share_interval(wins, losses, ROWS).low if wins + losses else 0.0
    else:
        least = a.low - b.high
    cheaper = a.size < b.size or faster
    return least > 0 or (least == 0 and cheaper)


@settings(max_examples=scaled(150), deadline=None)
@given(models(), st.sampled_from([0.0, 0.05]))
def test_a_row_is_off_the_frontier_when_some_row_dominates_it_and_only_then(rows, tolerance) -> None:
    verdicts = frontier(rows, tolerance=tolerance)
    for row, verdict in zip(rows, verdicts, strict=True):
        rivals = [r for r in rows if r is not row and dominates(r, row, tolerance)]
        assert (verdict.by is not None) == bool(rivals)
        if verdict.by is not None:
            assert dominates(rows[verdict.by], row, tolerance)
            assert verdict.paired == (row.figures is not None and rows[verdict.by].figures is not None)
        else:
            exact = [replace(r, low=r.quality, high=r.quality, figures=None) for r in (row, *rows)]
            ahead = any(dominates(r, exact[0], tolerance) for r in exact[1:])
            assert (verdict.rival is not None) == ahead


@settings(max_examples=scaled(100), deadline=None)
@given(models(), st.sampled_from([0.0, 0.05, 0.3]))
def test_some_row_is_always_left_and_none_dominates_its_dominator(rows, tolerance) -> None:
    verdicts = frontier(rows, tolerance=tolerance)
    assert any(v.by is None for v in verdicts)
    for start in range(len(rows)):
        seen, here = set(), start
        while (by := verdicts[here].by) is not None:
            assert by not in seen, "a circle"
            seen.add(here)
            here = by


@settings(max_examples=scaled(60), deadline=None)
@given(models(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_says_nothing(rows, random) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    before, after = frontier(rows), frontier([rows[i] for i in order])
    assert [before[i].by is None for i in order] == [v.by is None for v in after]


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=8))
def test_without_uncertainty_it_is_the_usual_frontier(points) -> None:
    rows = [Candidate(q, q, q, s, float(t + 1), "d") for q, s, t in points]
    verdicts = frontier(rows, tolerance=0.0)
    for (q, s, t), verdict in zip(points, verdicts, strict=True):
        usual = any(a >= q and b <= s and c <= t and (a, b, c) != (q, s, t) for a, b, c in points)
        assert (verdict.by is not None) == usual


@settings(max_examples=scaled(60), deadline=None)
@given(models(paired=False), st.floats(0, 0.5))
def test_wider_intervals_take_no_row_off_the_frontier(rows, more) -> None:
    wide = [replace(r, low=r.low - more, high=r.high + more) for r in rows]
    for narrow, wider in zip(frontier(rows), frontier(wide), strict=True):
        assert narrow.by is not None or wider.by is None


def test_the_paired_interval_sees_what_two_intervals_do_not() -> None:
    random = np.random.default_rng(0)
    worse = random.random(400) < 0.8
    better = worse.copy()
    better[np.flatnonzero(~worse)[:12]] = True  # 3 points, and never wrong where the other is right
    large, small = candidate(worse, 2, 2.0), candidate(better, 1, 1.0)
    assert small.low < large.high
    assert frontier([large, small]) == [Verdict(1, paired=True), Verdict()]
    alone = frontier([replace(large, figures=None), small])
    assert alone == [Verdict(unpaired=1, rival=1), Verdict()]


def test_the_same_answers_from_a_smaller_model_dominate_and_a_copy_does_not() -> None:
    right = np.random.default_rng(0).random(ROWS) < 0.7
    one, copy, smaller = candidate(right, 2, 1.0), candidate(right, 2, 1.02), candidate(right, 1, 1.04)
    assert [v.by for v in frontier([one, copy])] == [None, None]
    assert [v.by for v in frontier([one, smaller])] == [1, None], "a latency within 5 % is no slower"
    assert [v.by for v in frontier([one, smaller], tolerance=0.0)] == [None, None]


def test_of_two_models_of_one_shape_none_is_faster() -> None:
    right = np.random.default_rng(0).random(ROWS) < 0.7
    fast, slow = candidate(right, 1, 1.0), candidate(right, 1, 1.3)
    assert [v.by for v in frontier([fast, slow])] == [None, 0]
    assert [v.by for v in frontier([replace(r, shape="s") for r in (fast, slow)])] == [None, None]
    better = candidate(np.ones(ROWS, bool), 1, 1.3)
    assert [v.by for v in frontier([fast, better])] == [None, None]
    assert [v.by for v in frontier([replace(r, shape="s") for r in (fast, better)])] == [1, None]


@pytest.mark.parametrize("change", [{"conditions": "other"}, {"latency": None}, {"data": "other"}])
def test_unlike_rows_never_dominate(change) -> None:
    bad, good = candidate(np.zeros(ROWS, bool), 9, 9.0), candidate(np.ones(ROWS, bool), 1, 1.0)
    assert frontier([bad, good])[0].by == 1
    assert [v.by for v in frontier([bad, replace(good, **change)])] == [None, None]


def test_bad_figures() -> None:
    assert frontier([]) == []
    with pytest.raises(ValueError, match="finite"):
        frontier([Candidate(float("nan"), 0, 1, 1, 1, "d")])

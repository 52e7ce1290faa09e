"""Slices: figures of groups, the paired difference to a parent, and the correction for many groups."""

from __future__ import annotations

import json

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.quality.correlation import spearman_of_draws
from evaluation.quality.draws import of_mean
from evaluation.quality.estimates import estimate_difference, estimate_metric
from evaluation.quality.multiple import holm
from evaluation.quality.paired import paired_accuracy
from evaluation.quality.pairing import ResampledMetric, resample_metric
from evaluation.quality.slices import FEWEST, Answers, Members, Slice, by_quarter, by_value, find_worse, slices


def of_right(right: np.ndarray) -> Answers:
    return Answers(of_mean(right), right)


def test_a_slice_is_the_model_on_those_rows_alone() -> None:
    random = np.random.default_rng(0)
    ours, theirs, kind = random.random(400) < 0.8, random.random(400) < 0.9, random.integers(0, 3, 400)
    for found, name in zip(slices(by_value("kind", kind), of_right(ours), of_right(theirs)), "012", strict=False):
        at = kind == int(found.name)
        test = paired_accuracy(ours[at], theirs[at])
        assert (found.rows, found.difference, found.p_value) == (at.sum(), test.difference, test.p_value), name
        assert found.value is not None
        assert found.value.value == pytest.approx(ours[at].mean())
        assert found.parent == pytest.approx(theirs[at].mean())


def test_any_metric_can_be_sliced() -> None:
    random = np.random.default_rng(1)
    gold, group = random.random(200), random.integers(0, 2, 200)
    good, poor = gold + 0.1 * random.random(200), gold + 2 * random.random(200)
    figures = [Answers(spearman_of_draws(gold, x)) for x in (poor, good)]
    for s in slices(by_value("g", group), *figures, resamples=200):
        at = group == int(s.name)
        plain = estimate_metric(int(at.sum()), spearman_of_draws(gold[at], poor[at]), resamples=200)
        assert s.value is not None
        assert (s.value.value, s.value.low, s.value.high) == pytest.approx((plain.value, plain.low, plain.high))
        assert s.verdict == "fails more"


def test_the_group_that_fails_more_is_named_and_the_others_are_not() -> None:
    random = np.random.default_rng(2)
    group = np.repeat(["a", "b", "c", "d"], 200)
    theirs = random.random(800) < 0.9
    ours = theirs & ~((group == "c") & (random.random(800) < 0.3))
    found = slices(by_value("group", group), of_right(ours), of_right(theirs))
    assert [s.name for s in find_worse(found)] == ["c"]
    assert {s.verdict for s in found if s.name != "c"} == {"no measurable difference"}


def test_small_slices_are_named_and_not_tested() -> None:
    right = np.ones(100, dtype=bool)
    sizes = np.repeat(["large", "small"], [100 - FEWEST + 1, FEWEST - 1])
    large, small = slices(by_value("g", sizes), of_right(right), of_right(right))
    assert (large.p_value, large.adjusted, large.verdict) == (1.0, 1.0, "no measurable difference")
    assert (small.name, small.rows, small.value, small.p_value) == ("small", FEWEST - 1, None, None)
    assert small.why == f"fewer than {FEWEST} rows"
    assert small.verdict == ""


def test_a_metric_that_is_undefined_on_a_slice_says_so() -> None:
    gold = np.concatenate([np.ones(40), np.random.default_rng(0).random(40)])
    group = np.repeat(["flat", "varied"], 40)
    figure = Answers(lambda w: np.where((w @ (gold != 1)) > 0, 0.5, np.nan))
    by_name = {s.name: s for s in slices(by_value("g", group), figure)}
    assert by_name["flat"].why == "the metric is undefined on these rows"
    assert by_name["varied"].value is not None


def test_a_model_alone_has_figures_and_no_verdict() -> None:
    (found,) = slices([Members("all", "all", np.ones(50, bool))], of_right(np.arange(50) < 40))
    assert found.value is not None
    assert (found.value.value, found.difference, found.verdict) == (0.8, None, "")


def test_quarters_have_their_bounds_in_the_name() -> None:
    groups = by_quarter("length", np.arange(8))
    assert [g.name for g in groups] == [
        "lowest quarter, 0 to 1", "second quarter, 2 to 3", "third quarter, 4 to 5", "highest quarter, 6 to 7",
    ]  # fmt: skip
    assert by_quarter("none", [np.nan]) == []


def test_numbers_that_nearly_all_rows_share_are_no_quarter() -> None:
    assert by_quarter("documents of a query", [30, 30, 30]) == []
    groups = by_quarter("documents of a query", [30] * 9 + [31])
    assert [(g.name, g.inside.sum()) for g in groups] == [("30", 9), ("31", 1)]


@settings(max_examples=scaled(100), deadline=None)
@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_is_its_definition(p) -> None:
    adjusted = holm(p)
    order = sorted(range(len(p)), key=lambda i: p[i])
    expected, most = [0.0] * len(p), 0.0
    for place, i in enumerate(order):
        most = max(most, min(1.0, (len(p) - place) * p[i]))
        expected[i] = most
    assert adjusted == pytest.approx(expected)


@pytest.mark.parametrize("bad", [[1.1], [-0.1], [float("nan")]])
def test_holm_refuses_what_is_no_probability(bad) -> None:
    with pytest.raises(ValueError, match="p-values"):
        holm(bad)


def test_slices_survive_json() -> None:
    right = np.arange(100) % 3 > 0
    found = slices(by_quarter("length", np.arange(100) % 7), of_right(right), of_right(~right))
    read = [Slice.from_json(data) for data in json.loads(json.dumps([s.as_json() for s in found]))]
    assert read == found


@settings(max_examples=scaled(30), deadline=None)
@given(st.integers(5, 80), st.integers(0, 3))
def test_kept_resamples_give_the_paired_interval(rows, seed) -> None:
    random = np.random.default_rng(seed)
    a, b = random.random(rows) < 0.7, random.random(rows) < 0.6
    scores = random.random((2, rows))
    for ours, theirs in ((of_mean(a), of_mean(b)), (of_mean(scores[0]), of_mean(scores[1]))):
        one, other = (resample_metric(rows, x, metric="f1", data="d", resamples=300) for x in (ours, theirs))
        direct = estimate_difference(rows, ours, theirs, resamples=300)
        paired = ResampledMetric.parse(one.text()).minus(ResampledMetric.parse(other.text()))
        assert (paired.value, paired.low, paired.high) == pytest.approx(
            (direct.value, direct.low, direct.high),
            abs=2e-3,  # kept with seven digits: a tie may fall otherwise
        )


def test_resamples_of_an_earlier_version_are_read() -> None:
    """They lack which rows were right: the difference is resampled, and no difference is no certainty."""
    written = json.loads(resample_metric(40, of_mean(np.ones(40)), metric="accuracy", data="d", resamples=50).text())
    old = {key: value for key, value in written.items() if key not in ("right", "left_out")}
    read = ResampledMetric.parse(json.dumps({**old, "format": "resampled-1"}))
    assert (read.right, read.left_out) == (None, None)
    apart = read.minus(read)
    assert (apart.value, apart.high) == (0.0, pytest.approx(1.96**2 / (40 + 1.96**2), abs=1e-4))
    with pytest.raises(ValueError, match="1 bytes do not hold 40 rows"):
        ResampledMetric.parse(json.dumps({**written, "right": "ff"}))


def test_other_rows_are_not_paired() -> None:
    one = resample_metric(10, of_mean(np.ones(10)), metric="accuracy", data="a", resamples=100)
    other = resample_metric(10, of_mean(np.ones(10)), metric="accuracy", data="b", resamples=100)
    with pytest.raises(ValueError, match="same resamples"):
        one.minus(other)
    for bad in ("{}", '{"format": "x"}', "[]", "no json"):
        with pytest.raises(ValueError):
            ResampledMetric.parse(bad)

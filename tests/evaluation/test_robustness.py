"""The curve of quality against disturbance, on answers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.quality.draws import of_mean
from evaluation.quality.paired import paired_accuracy
from evaluation.quality.robustness import differences, robustness


def share(right: np.ndarray):
    return of_mean(right)


def answers(rows: int = 400):
    """A model that gets every row right, less 2 % of the rows a per cent of disturbance; there are two metrics."""
    draw = np.random.default_rng(1).random(rows)

    def answer(rate: float):
        right = (draw >= 2 * rate).astype(float)
        return {"accuracy": share(right), "error": share(1 - right)}

    return answer, draw


def test_values_and_losses_are_those_of_the_rows() -> None:
    answer, draw = answers()
    points = robustness(400, answer, (0.0, 0.05, 0.2), resamples=200)
    assert [p.rate for p in points] == [0.0, 0.05, 0.2]
    for point in points:
        right = (draw >= 2 * point.rate).mean()
        assert point.values["accuracy"].value == pytest.approx(right)
        assert point.values["error"].value == pytest.approx(1 - right)
        assert point.lost is not None
        assert point.lost.value == pytest.approx(1 - right)
        assert point.lost.low <= point.lost.value <= point.lost.high
    assert (points[0].lost.low, points[0].lost.high) == (0, 0), "paired with itself"


def test_a_figure_that_is_undefined_somewhere_is_left_out_there() -> None:
    nothing = lambda weights: np.full(len(weights), np.nan)  # noqa: E731
    ones = np.ones(10)
    first, second = robustness(
        10, lambda rate: {"r": nothing if rate else share(ones), "s": share(ones)}, (0.0, 0.1), resamples=100
    )
    assert (first.undefined, second.undefined) == ((), ("r",))
    assert second.lost is None
    assert set(second.values) == {"s"}


@pytest.mark.parametrize("rates", [(), (0.1,), (0.0, 0.2, 0.1), (0.0, 0.0)])
def test_rates_rise_from_0(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rise from 0"):
        robustness(10, lambda rate: {}, rates)


def test_the_difference_of_two_models_is_paired_at_every_rate() -> None:
    """With the interval of the discordant rows; two models without one are not certain to be equal."""
    draw = np.random.default_rng(1).random(400)
    right = {name: lambda rate, k=k: (draw >= k * rate).astype(float) for name, k in (("a", 1), ("b", 2))}
    a, b = (
        robustness(400, lambda rate, of=of: {"accuracy": share(of(rate))}, (0.0, 0.1, 0.3), resamples=2000)
        for of in right.values()
    )
    found = differences(400, a, b, "accuracy", resamples=2000)
    assert found[0] is not None
    assert found[0].value == 0, "no rate, no difference"
    assert -found[0].low == found[0].high == pytest.approx(0.0095, abs=1e-4)
    for point, interval in zip(a[1:], found[1:]):
        assert interval is not None
        assert interval == paired_accuracy(right["a"](point.rate), right["b"](point.rate)).difference
        assert interval.low > 0


def test_no_difference_where_one_model_has_no_figure_or_other_rates() -> None:
    nothing = lambda weights: np.full(len(weights), np.nan)  # noqa: E731
    one = robustness(10, lambda rate: {"r": share(np.ones(10))}, (0.0, 0.1), resamples=100)
    other = robustness(10, lambda rate: {"r": nothing if rate else share(np.ones(10))}, (0.0, 0.1), resamples=100)
    assert [found is None for found in differences(10, one, other, "r", resamples=100)] == [False, True]
    with pytest.raises(ValueError, match="same rates"):
        differences(10, one, other[:1], "r")

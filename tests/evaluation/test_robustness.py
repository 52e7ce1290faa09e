"""The curve of quality against disturbance, on answers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.quality.robustness import robustness


def share(right: np.ndarray):
    return lambda weights: weights @ right / weights.sum(1)


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

"""How far predicted milliseconds may be off, and what earlier plans say of the points that a plan will lose."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.fit.cost.blocks import Blocks, LayerCost
from compress.fit.loss.past_fits import FEWEST, MOST, Experience, PastPlan
from compress.tracking.reading import StoredRun


def blocks(*checks: float) -> Blocks:
    none = LayerCost({}, {})
    return Blocks(none, none, {}, 0.0, 0.0, False, checks)


def test_a_margin_is_of_the_scatter_and_not_of_the_mean() -> None:
    assert blocks(0.9, 0.9, 0.9).margin == pytest.approx(1)
    assert blocks(1.8, 2.0, 2.2).margin == pytest.approx(blocks(0.9, 1.0, 1.1).margin)
    # Student's quantile for two degrees of freedom is 4.3027; one more case, with the error of the mean of three
    spread = math.log(1.1)
    assert blocks(1 / 1.1, 1.0, 1.1).margin == pytest.approx(math.exp(4.3027 * spread * math.sqrt(1 + 1 / 3)), rel=1e-5)
    assert blocks(0.98, 1.0, 1.02).margin < blocks(0.9, 1.0, 1.1).margin


def plans(count: int, parent: str = "mine", loss: float = 0.1) -> list[PastPlan]:
    return [PastPlan(parent, loss, 0.1 * i) for i in range(count)]


def test_an_interval_needs_enough_plans_alike() -> None:
    assert Experience(plans(FEWEST - 1), "mine").estimate_loss(0.1) is None
    found = Experience(plans(FEWEST), "mine").estimate_loss(0.2)
    assert found is not None
    assert (found.low, found.value, found.high) == pytest.approx((0.0, 0.4, 0.8))
    assert found.chance == pytest.approx(0.8)
    assert found.of == "this model"
    assert Experience(plans(FEWEST), "mine").estimate_loss(0.31) is None, "three times the loss is another kind of plan"
    assert Experience(plans(FEWEST) * 3, "mine").estimate_loss(0.1) == Experience(plans(FEWEST), "mine").estimate_loss(
        0.1
    )


def test_plans_of_this_model_count_first_and_the_nearest_of_many() -> None:
    others = [PastPlan("other", 0.1, 50.0 + i) for i in range(FEWEST)]
    mine = Experience([*others, *plans(FEWEST)], "mine").estimate_loss(0.1)
    assert mine is not None
    assert mine.high < 1
    few = Experience([*others, *plans(FEWEST - 1)], "mine").estimate_loss(0.1)
    assert few is not None
    assert few.of == "all models"
    assert few.high > 50
    many = Experience([*plans(MOST), *plans(MOST, loss=0.25)], "mine").estimate_loss(0.1)
    assert many is not None
    assert many.plans == MOST
    assert many.chance == pytest.approx(0.9)


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(-5, 90)), max_size=40), st.floats(0, 2))
def test_an_interval_holds_its_median_and_is_of_plans_alike(rows: list[tuple[float, float]], loss: float) -> None:
    past = Experience([PastPlan("a", x, y) for x, y in rows], "a")
    found = past.estimate_loss(loss)
    assert (found is None) == (past.count_similar(loss) < FEWEST)
    if found is not None:
        assert found.low <= found.value <= found.high
        assert FEWEST <= found.plans <= MOST


def test_what_the_store_holds() -> None:
    figures = {"validation/accuracy": 0.9, "fit/planned_loss": 0.1, "validation/drop_points": 0.5}
    runs = [
        figures,
        {**figures, "fit/trained_steps": 100.0},  # healed: less than the plan alone loses
        {"validation/f1": 0.9, "fit/planned_loss": 0.1, "validation/drop_points": 0.5},
        {"quality/accuracy": 0.9},  # the parent, measured
    ]
    stored = [StoredRun(str(i), "", "", 0, "", row, {}, {"compress.fit_parent": "mine"}) for i, row in enumerate(runs)]
    past = Experience.of(SimpleNamespace(list_tagged_runs=lambda tag: stored), "accuracy", "mine")  # pyright: ignore[reportArgumentType]
    assert past.made == [PastPlan("mine", 0.1, 0.5)]

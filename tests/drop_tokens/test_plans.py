"""Shares of tokens by measured losses and times: what is proposed, from mild to bold."""

from __future__ import annotations

import itertools

import pytest

from compress.encoder.config.token_dropping import ALL
from compress.stages.drop_tokens.plans import GRID, MeasuredDrops

SAFE: dict[int, float] = dict.fromkeys(GRID, 0.0)
COSTLY: dict[int, float] = {percent: 0.1 * (ALL - percent) for percent in GRID}
LAYER: dict[int, float] = {percent: 0.02 * percent for percent in GRID}


def test_expected_milliseconds() -> None:
    drops = MeasuredDrops([SAFE] * 3, LAYER, choosing=0.1)
    assert drops.expect_ms((100, 100, 100)) == pytest.approx(6)
    assert drops.expect_ms((100, 50, 50)) == pytest.approx(2 + (1.5 + 0.1) + 1)


def test_plans_are_the_best_of_all_and_go_from_mild_to_bold() -> None:
    losses = [COSTLY, {p: 0.02 * (ALL - p) for p in GRID}, SAFE]
    drops = MeasuredDrops(losses, LAYER, choosing=0.05)
    every = [p for p in itertools.product(GRID, repeat=3) if list(p) == sorted(p, reverse=True) and p[1] == p[2]]

    def worth(plan: tuple[int, ...], price: float) -> float:
        steps = zip(losses, (ALL, *plan), plan, strict=False)
        return drops.expect_ms(plan) + price * sum(loss[after] - loss[before] for loss, before, after in steps)

    for price in (0.0, 0.05, 0.3, 1.0, 50.0):
        assert worth(drops.find_plan(price), price) == pytest.approx(min(worth(plan, price) for plan in every))
    plans = drops.list_plans(8)
    ms = [drops.expect_ms(plan) for plan in plans]
    assert ms == sorted(ms, reverse=True)
    assert plans[-1] == (15, 15, 15)
    assert len({*plans}) == len(plans) <= 8
    assert all(min(plan) < ALL for plan in plans)
    assert len(drops.list_plans(2)) == 2


def test_no_plan_where_choosing_costs_more_than_it_saves() -> None:
    assert MeasuredDrops([SAFE] * 2, LAYER, choosing=9.0).list_plans(8) == []
    assert MeasuredDrops([SAFE], LAYER, choosing=0.0).list_plans(8) == [], "nothing reads what the last layer leaves"

"""A fixed sequence of tests: who proposes, who is proven, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from evaluation.learn_then_test import (
    PROPOSING,
    count_known_rows_needed,
    draw_proposing,
    measure_loss,
    prove_in_order,
)


@dataclass(frozen=True)
class Candidate:
    p_value: float


def test_the_first_that_is_not_proven_ends_it_and_nothing_behind_it_is_computed() -> None:
    computed = []

    def compute() -> Iterator[Candidate]:
        for p_value in (0.05, 0.08, 0.2, 0.0):
            computed.append(p_value)
            yield Candidate(p_value)

    proven, tested = prove_in_order(compute(), 0.9)
    assert [one.p_value for one in proven] == [0.05, 0.08]
    assert [one.p_value for one in tested] == computed == [0.05, 0.08, 0.2]
    assert prove_in_order([Candidate(0.01)], 0.95) == ([Candidate(0.01)],) * 2
    assert prove_in_order([], 0.9) == ([], [])


def test_rows_that_propose_are_drawn_by_the_seed_alone() -> None:
    drawn = draw_proposing(1000)
    assert drawn.sum() == 1000 * PROPOSING
    assert (drawn == draw_proposing(1000)).all()
    assert not (drawn == draw_proposing(1000, seed=1)).all()


def test_fewer_rows_than_needed_prove_nothing() -> None:
    needed = count_known_rows_needed(1.0, 0.9)
    assert needed == 330
    testing = int((~draw_proposing(330)).sum())
    assert measure_loss(0, 0, testing, 1.0)[1] <= 0.1
    assert measure_loss(0, 0, testing - 1, 1.0)[1] > 0.1
    assert math.isinf(count_known_rows_needed(0.0, 0.9))


def test_points_lost() -> None:
    assert measure_loss(3, 1, 200, 0.5)[0] == pytest.approx(1.0)

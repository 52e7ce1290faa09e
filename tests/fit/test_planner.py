"""Plans against all there are: the planner's best of each kind is the best of each kind."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.fit.plan.planner import TOGETHER, Choice, Layer, Options, Planner, Problem, Run, Shape

NUMBERS = st.integers(0, 9)


@st.composite
def options(draw: st.DrawFn, most: int = 3) -> Options:
    n = draw(st.integers(1, most))
    columns = [draw(st.lists(NUMBERS, min_size=n, max_size=n)) for _ in range(3)]
    return Options(*(np.array(column, dtype=float) for column in columns))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    drop = st.one_of(st.none(), NUMBERS.map(float))
    layers = [Layer(draw(options()), draw(options()), draw(drop)) for _ in range(draw(st.integers(1, 3)))]
    runs = []
    for _ in range(draw(st.integers(0, 2)) if len(layers) > 1 else 0):
        first = draw(st.integers(0, len(layers) - 2))
        runs.append(Run(first, draw(st.integers(2, len(layers) - first)), draw(options())))
    return Problem(layers, draw(options()), float(draw(NUMBERS)), float(draw(NUMBERS)), runs=runs)


def every(problem: Problem) -> Iterator[Choice]:
    """All choices that keep a layer."""
    ways = []
    for layer in problem.layers:
        pairs = list(itertools.product(range(len(layer.attention)), range(len(layer.feed_forward))))
        ways.append([*pairs, *([None] if layer.drop is not None else [])])
    for runs in together(problem, 0):
        each = list(ways)
        for run, _ in runs:
            first, count = problem.runs[run].first, problem.runs[run].count
            each[first : first + count] = [[TOGETHER]] * count
        for layers in itertools.product(*each):
            if any(x is not None for x in layers):
                for embedding in range(len(problem.embedding)):
                    yield problem.of(layers, embedding, runs)


def together(problem: Problem, start: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """All sets of runs that do not overlap, from a layer on."""
    yield ()
    for number, run in enumerate(problem.runs):
        if run.first >= start:
            for option in range(len(run.options)):
                for rest in together(problem, run.first + run.count):
                    yield ((number, option), *rest)


def brute(problem: Problem, ms: float, mb: float) -> list[float]:
    """Losses of the best of each kind, of those embeddings that no other one beats."""
    best: dict[tuple[int, int], float] = {}
    for choice in every(problem):
        if choice.ms <= ms and choice.mb <= mb and choice.embedding in problem.embedding.useful:
            kind = (choice.dropped, choice.embedding)
            best[kind] = min(best.get(kind, math.inf), choice.loss)
    return sorted(best.values())


@settings(max_examples=scaled(60), deadline=None)
@given(problem=problems(), ms=st.integers(0, 60), mb=st.integers(0, 60))
def test_the_best_of_every_kind(problem: Problem, ms: int, mb: int) -> None:
    found = Planner(problem, ms, mb).best(1000)
    assert [c.loss for c in found] == pytest.approx(brute(problem, ms, mb))
    for choice in found:
        again = problem.of(choice.layers, choice.embedding, choice.runs)
        assert again == choice
        assert choice.ms <= ms
        assert choice.mb <= mb


@settings(max_examples=scaled(30), deadline=None)
@given(problem=problems(), budget=st.integers(0, 60), part=st.integers(0, 60))
def test_one_table_answers_for_smaller_budgets(problem: Problem, budget: int, part: int) -> None:
    planner = Planner(problem, ms=float(budget))
    less = float(min(part, budget))
    assert [c.loss for c in planner.best(1000, ms=less)] == pytest.approx(brute(problem, less, math.inf))


@settings(max_examples=scaled(30), deadline=None)
@given(problem=problems())
def test_no_choice_is_outside_of_least_and_most(problem: Problem) -> None:
    costs = [(c.ms, c.mb) for c in every(problem)]
    for axis in (0, 1):
        assert min(c[axis] for c in costs) >= problem.lower_bounds[axis]
        assert max(c[axis] for c in costs) <= problem.upper_bounds[axis]


@settings(max_examples=scaled(20), deadline=None)
@given(problem=problems(), ms=st.integers(0, 60))
def test_a_shape_changes_what_kinds_are_worth_and_not_what_is_best_in_one(problem: Problem, ms: int) -> None:
    bent = dataclasses.replace(problem, shape=Shape((0.0, 3.0, 9.0), (0.0, 1.0, 20.0)))
    found = Planner(bent, ms).best(1000)
    assert [c.loss for c in found] == pytest.approx(brute(bent, ms, math.inf))


def real(depth: int, seed: int = 0) -> Problem:
    """As large as a real one, costs without a common measure."""
    random = np.random.default_rng(seed)

    def part(n: int) -> Options:
        k = np.arange(1, n + 1) / n
        return Options(
            k * random.uniform(0.5, 1.5), k * random.uniform(0.5, 1.5), (1 - k) ** 2 * random.uniform(0.1, 1)
        )

    layers = [Layer(part(12), part(24), float(random.uniform(0.1, 0.5))) for _ in range(depth)]
    tables = Options(np.zeros(30), random.uniform(1, 5, 30), random.uniform(0, 0.1, 30))
    return Problem(layers, tables, 1.0, 1.0)


def test_budgets_are_kept_where_costs_are_no_multiples_of_anything() -> None:
    problem = real(6)
    found = Planner(problem, 0.5 * problem.upper_bounds[0], 0.5 * problem.upper_bounds[1]).best(50)
    assert len(found) > 5
    for choice in found:
        assert choice.ms <= 0.5 * problem.upper_bounds[0] + 1e-9
        assert choice.mb <= 0.5 * problem.upper_bounds[1] + 1e-9
    assert max(found[0].ms / (0.5 * problem.upper_bounds[0]), found[0].mb / (0.5 * problem.upper_bounds[1])) > 0.97


def test_plans_to_try_differ_in_their_layers() -> None:
    problem = real(6)
    planner = Planner(problem, 0.4 * problem.upper_bounds[0])
    tried = planner.choose_diverse(6)
    assert len(tried) == 6
    assert len({c.dropped for c in tried}) >= 3
    assert tried[0].loss == planner.best(1)[0].loss


def test_nothing_fits_below_the_least() -> None:
    problem = real(3)
    assert Planner(problem, ms=0.99 * problem.lower_bounds[0]).best(3) == []
    assert Planner(problem, mb=0.5).best(3) == []


def test_a_shape_and_its_inverse() -> None:
    shape = Shape.of([(2.0, 1.0), (1.0, 0.1), (3.0, 0.9)])  # the last one falls, and is left out
    assert shape == Shape((0.0, 1.0, 2.0), (0.0, 0.1, 1.0))
    for x in (0.0, 0.5, 1.0, 1.7, 4.0):
        assert shape.inverse(shape(x)) == pytest.approx(x)
    assert shape(4.0) == pytest.approx(2.8)
    assert Shape.of([])(0.7) == Shape.of([]).inverse(0.7) == 0.7

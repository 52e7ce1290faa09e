"""How many layers stay: a number, the fewest within a loss, the most within a latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.contracts import LayerChoice
from compress.errors import ExitCode, UserError
from compress.stages.prune_layers.spec import Spec
from compress.stages.prune_layers.targets import (
    build_trial_rows,
    check_fits,
    deepest_within,
    find_protected_layers,
    kept_count,
    shallowest_within,
)


def spec(**keys: Any) -> Spec:
    return Spec.model_validate({"kind": "prune_layers", **keys})


def first(keep: int) -> LayerChoice:
    return LayerChoice(tuple(range(keep)), {})


@given(st.integers(2, 40), st.data())
def test_keep_and_drop_say_the_same(depth: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, depth - 1))
    assert kept_count(spec(keep=keep), depth) == kept_count(spec(drop=depth - keep), depth) == keep
    most = data.draw(st.integers(1, depth - 1))
    found = kept_count(spec(keep=keep, max_layers_per_stage=most), depth)
    assert found == max(keep, depth - most)


def test_half_is_rounded_up() -> None:
    assert [kept_count(spec(keep="half"), depth) for depth in (2, 5, 6, 12)] == [1, 3, 3, 6]
    assert kept_count(spec(keep="half", max_layers_per_stage=2), 6) == 4


def test_keep_is_a_number_or_half() -> None:
    for wrong in (0, 513, True, "third", 1.5):
        with pytest.raises(ValueError, match="allowed: a whole number from 1 to 512, or half"):
            spec(keep=wrong)


def test_what_is_only_found_by_measuring() -> None:
    assert kept_count(spec(max_drop=1.0), 6) is None
    assert kept_count(spec(target_latency=5.0), 6) is None
    assert kept_count(spec(layers=[0, 3]), 6) == 2


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"keep": 6}, "keep: cannot keep 6 of 6 layers: the model has layers 0..5; use keep 1..5"),
        ({"drop": 6}, "drop: all 6 layers would be dropped: the model has layers 0..5; use drop 1..5"),
        ({"drop": 9}, "drop: all 6 layers would be dropped: the model has layers 0..5; use drop 1..5"),
        ({"layers": []}, "layers: all 6 layers would be dropped: the model has layers 0..5; use keep 1..5"),
    ],
)
def test_numbers_that_do_not_fit(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as error:
        kept_count(spec(**keys), 6)
    assert str(error.value) == line
    with pytest.raises(UserError, match="a model with one layer cannot lose one"):
        kept_count(spec(keep=1), 1)


LOSSES = st.lists(st.floats(0, 10), min_size=2, max_size=8)


@given(LOSSES, st.floats(0, 10))
def test_layers_go_until_one_costs_too_much(losses: list[float], limit: float) -> None:
    """losses[n]: of n + 1 layers removed."""
    depth = len(losses) + 1
    fitting = next((n for n, loss in enumerate(losses) if loss > limit), len(losses))
    asked: list[int] = []

    def lost(keep: Sequence[int]) -> float:
        asked.append(len(keep))
        return losses[depth - len(keep) - 1]

    if not fitting:
        with pytest.raises(
            UserError, match=r"^max_drop: no layer can be dropped within .*the cheapest removal"
        ) as error:
            deepest_within(limit, depth, 1, first, lost)
        assert error.value.code == ExitCode.REFUSED
        return
    choice, tried = deepest_within(limit, depth, 1, first, lost)
    assert len(choice.keep) == depth - fitting
    assert asked == list(range(depth - 1, depth - 1 - len(tried), -1)), "nothing is measured after the first too many"
    assert [t.met for t in tried[:fitting]] == [True] * fitting


def test_layers_that_must_stay() -> None:
    assert len(deepest_within(5, 6, 4, first, lambda keep: 0.0)[0].keep) == 4
    with pytest.raises(UserError, match="all layers are protected"):
        deepest_within(5, 6, 6, first, lambda keep: 0.0)
    with pytest.raises(UserError, match="protect: all layers are protected; protect fewer"):
        shallowest_within(5, 6, 6, first, lambda sets: [0.0] * len(sets))


def test_the_most_layers_that_are_fast_enough() -> None:
    choice, tried = shallowest_within(3.0, 6, 1, first, lambda sets: [float(len(keep)) for keep in sets])
    assert len(choice.keep) == 3
    assert [(len(t.choice.keep), t.met) for t in tried] == [(5, False), (4, False), (3, True), (2, True), (1, True)]


def test_a_choice_that_is_slow_the_second_time_gives_way() -> None:
    calls: list[int] = []

    def times(sets: Sequence[Sequence[int]]) -> list[float]:
        calls.append(len(sets))
        return [9.0 if len(sets) == 1 and len(keep) == 3 else float(len(keep)) for keep in sets]

    choice, tried = shallowest_within(3.0, 5, 1, first, times)
    assert len(choice.keep) == 2
    assert calls == [4, 1, 1]
    assert (len(tried[-1].choice.keep), tried[-1].value, tried[-1].met) == (3, 9.0, False)


def test_nothing_is_fast_enough() -> None:
    with pytest.raises(UserError) as error:
        shallowest_within(0.5, 4, 2, first, lambda sets: [float(len(keep)) for keep in sets])
    assert "no model with 2 or more layers runs in 0.5 ms or less here: the fastest takes 2.00 ms, with 2" in str(
        error.value
    )
    assert error.value.code == ExitCode.REFUSED


def test_protected_layers() -> None:
    assert find_protected_layers(spec(keep=2), 6, first_is_special=False) == frozenset()
    assert find_protected_layers(spec(keep=2), 6, first_is_special=True) == {0}
    assert find_protected_layers(spec(keep=2, protect=[5, 1]), 6, first_is_special=True) == {1, 5}
    with pytest.raises(UserError, match=r"protect: layer 6 does not exist: allowed: 0\.\.5"):
        find_protected_layers(spec(keep=2, protect=[6]), 6, first_is_special=False)
    check_fits(2, frozenset({0, 5}))
    with pytest.raises(UserError, match="3 layers are protected but only 2 would be kept: protected: 0, 3, 5"):
        check_fits(2, frozenset({5, 0, 3}))


def test_rows_of_trials() -> None:
    _, tried = shallowest_within(1.0, 3, 1, first, lambda sets: [float(len(keep)) for keep in sets])
    columns, rows = build_trial_rows(tried, "ms")
    assert columns == ("layers", "which", "ms", "within the target")
    assert rows == [("2", "0, 1", "2.00", "no"), ("1", "0", "1.00", "yes")]

"""What criteria share: which layers go by a score, and a rule that meets protected layers."""

from __future__ import annotations

from typing import Any

import pytest

from compress.errors import UserError
from compress.stages.prune_layers.criteria._common import (
    choose_fixed,
    find_layer_before,
    format_layer,
    list_remaining,
    ordinal,
    remove_lowest,
)
from compress.stages.prune_layers.report import Report

NONE: frozenset[int] = frozenset()


def test_the_lowest_go_and_of_equal_ones_the_later() -> None:
    choice = remove_lowest({0: 0.5, 1: -1.0, 2: 0.5, 3: 2.0}, 2, NONE, score="harm", form="{:.1f}")
    assert choice.keep == (0, 3)
    assert choice.reasons == {1: "harm -1.0, the 1st lowest", 2: "harm 0.5, the 2nd lowest"}


def test_scores_of_a_table_have_one_format_and_that_of_the_reasons() -> None:
    choice = remove_lowest({0: 0.83444, 1: 0.76, 2: 0.834}, 2, NONE, score="harm", form="{:.3f}")
    made: Any = Report.__new__(Report)
    made.choice, made.depth, made.cka, made.low, made.high = choice, 3, None, None, None
    columns, rows = made.layers()
    assert columns[1] == "harm"
    assert [row[1] for row in rows] == ["0.834", "0.760", "0.834"]
    assert rows[1][-1].startswith("harm 0.760")


def test_protected_layers_stay_whatever_their_score() -> None:
    assert remove_lowest({0: 0.0, 1: 1.0, 2: 2.0}, 2, frozenset({0}), score="harm").keep == (0, 2)


def test_all_stay_where_all_are_kept() -> None:
    choice = remove_lowest({0: 0.0, 1: 1.0}, 2, NONE, score="harm")
    assert (choice.keep, choice.reasons) == ((0, 1), {})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_chooses_nothing(value: float) -> None:
    with pytest.raises(UserError, match=r"the layers cannot be compared: layer 1: harm is (nan|inf|-inf)"):
        remove_lowest({0: 0.0, 1: value, 2: 1.0}, 1, NONE, score="harm")


@pytest.mark.parametrize(
    ("keep", "protected", "kept"),
    [
        ([0, 1], {3}, (0, 3)),
        ([0, 3], {2}, (0, 2)),
        ([0, 1], {2, 3}, (2, 3)),
        ([1, 2], {1, 2}, (1, 2)),
        ([0, 2], {1}, (1, 2)),
    ],
)
def test_a_protected_layer_takes_the_place_of_the_nearest(
    keep: list[int], protected: set[int], kept: tuple[int, ...]
) -> None:
    choice = choose_fixed(keep, 4, frozenset(protected), "rule")
    assert choice.keep == kept
    assert set(choice.reasons) == set(range(4)) - set(kept)


def test_layers_before_and_their_names() -> None:
    assert [find_layer_before([1, 3], layer) for layer in (0, 1, 2, 3, 9)] == [None, None, 1, 1, 3]
    assert (format_layer(None), format_layer(0)) == ("the embeddings", "layer 0")
    assert list_remaining(4, [3, 0]) == (1, 2)


def test_ordinals() -> None:
    numbers = (1, 2, 3, 4, 10, 11, 12, 13, 21, 22, 23, 101, 111, 112, 121)
    assert [ordinal(n)[len(str(n)) :] for n in numbers] == [
        "st", "nd", "rd", "th", "th", "th", "th", "th", "st", "nd", "rd", "st", "th", "th", "st",
    ]  # fmt: skip

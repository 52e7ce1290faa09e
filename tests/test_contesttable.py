"""What a criterion comparison reports: no winner without intervals, ranks, and the chance to beat a coin."""

from __future__ import annotations

import numpy as np

from compress.experiments.criteria_table import Entry, Weighted, format_conclusions, rank_entries, table

ROWS = 400


def share(right: np.ndarray) -> Weighted:
    return lambda w: w @ right / w.sum(1)


def answers(rate: float, seed: int = 0) -> Weighted:
    return share((np.random.default_rng(seed).random(ROWS) < rate).astype(float))


def entries(rates: dict[str, float]) -> list[Entry]:
    here = [Entry(name, 3, ((i, 4, 5),), 100 * (0.9 - rate)) for i, (name, rate) in enumerate(rates.items())]
    figures = [[answers(rate, seed)] for seed, rate in enumerate(rates.values())]
    return rank_entries(here, figures, [answers(0.5, 99)], ROWS)


def test_a_winner_is_named_where_all_intervals_exclude_0_and_no_other() -> None:
    far = entries({"a": 0.5, "b": 0.9, "c": 0.4})
    assert [e.criterion for e in far] == ["b", "a", "c"]
    assert far[0].behind is not None
    assert far[0].behind.value == 0
    assert format_conclusions(far) == [
        "3 layers: b is best; the intervals of all others exclude 0",
        "3 layers: measurably better than the random baseline: b",
    ]  # fmt: skip
    near = format_conclusions(entries({"a": 0.71, "b": 0.7, "c": 0.3}))
    assert near[0] == "3 layers: no winner; not measurably worse than a: b"


def test_those_that_chose_the_same_share_the_first_place() -> None:
    same = ((1, 2),)
    here = [Entry("a", 2, same, 1.0), Entry("b", 2, same, 1.0), Entry("c", 2, ((0, 1),), 40.0)]
    found = rank_entries(here, [[answers(0.9)], [answers(0.9)], [answers(0.4, 7)]], None, ROWS)
    assert format_conclusions(found) == [
        "2 layers: a, b chose the same layers and are best; the intervals of all others exclude 0"
    ]


def test_the_chance_to_beat_a_coin_is_the_share_of_sets_that_are_worse() -> None:
    best, middle = (Entry("cka", 3, ((0, 1, 2),), 0.0, 0.0, rank, 20) for rank in (1, 10.5))
    assert (best.beats, middle.beats) == (1, 0.5)
    assert Entry("cka", 6, ((0,),), 0.0, 0.0, 1, 1).beats is None
    lines = format_conclusions([best, middle])
    assert (
        lines[-1]
        == "share of layer sets that are worse before recovery training, mean over depths (random: 50 %): cka 75 %"
    )


def test_the_table_leaves_out_what_nobody_fills() -> None:
    found = entries({"a": 0.5, "b": 0.9})
    columns, rows = table(found, "accuracy")
    assert columns[-2:] == ("behind the best", "against random baseline")
    assert "regret" not in columns
    assert rows[0][:4] == ("3", "b", "1 4 5", "0.00")
    assert all(len(row) == len(columns) for row in rows)

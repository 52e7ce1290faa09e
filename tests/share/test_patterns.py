"""Which layers share: every pattern covers every layer; what cannot be is told."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress import registry
from compress.contracts import LayerEvidence, LayerGroups
from compress.encoder.config.sharing import renumber_groups
from compress.errors import UserError

PATTERNS = "compress.stages.share.patterns"
ROWS: dict[str, list[dict[str, Any]]] = {
    "all": [{}],
    "none": [{}],
    "attention": [{}, {"groups": 2}],
    "feed_forward": [{}, {"groups": 2}],
    "contiguous": [{"groups": 2}],
    "cyclic": [{"groups": 2, "order": order} for order in ("sequence", "cycle", "cycle-reverse")],
    "inner": [{"inner": 1, "groups": 2}],
    "listed": [],  # of one depth only, see below
    "answers": [{"groups": 2}],
    "cka": [{"groups": 2}, {"groups": 2, "contiguous": False}],
}
CASES = [(kind, options) for kind, rows in ROWS.items() for options in rows]


def made(
    kind: str, options: dict[str, Any], depth: int, similarity: Any = None, damage: Any = lambda groups: 0.0
) -> LayerGroups:
    row = registry.schema(PATTERNS, kind).model_validate({"kind": kind, **options})
    return registry.build(PATTERNS, row)(depth, LayerEvidence(lambda: similarity, damage))


def test_every_pattern_is_held_to_the_contract_here() -> None:
    assert set(ROWS) == set(registry.parts(PATTERNS))


@pytest.mark.parametrize(("kind", "options"), CASES)
@given(depth=st.integers(2, 24), seed=st.integers(0, 99))
def test_a_pattern_covers_every_layer(kind: str, options: dict[str, Any], depth: int, seed: int) -> None:
    random = np.random.default_rng(seed).random((depth, depth))
    alike = (random + random.T) / 2
    np.fill_diagonal(alike, 1)
    groups = made(kind, options, depth, alike)
    for part in (groups.attention, groups.feed_forward):
        assert len(part) == depth
        assert max(renumber_groups(part)) + 1 in (1, 2, depth)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("contiguous", {"groups": 4}, "001223"),
        ("cyclic", {"groups": 3, "order": "sequence"}, "001122"),
        ("cyclic", {"groups": 3}, "012012"),
        ("cyclic", {"groups": 3, "order": "cycle-reverse"}, "012210"),
        ("inner", {"inner": 2}, "010101"),
        ("inner", {"inner": 3, "groups": 2}, "012345"),
        ("listed", {"groups": [[0, 3], [1, 2, 4], [5]]}, "011012"),
    ],
)
def test_six_layers(kind: str, options: dict[str, Any], expected: str) -> None:
    assert renumber_groups(made(kind, options, 6).attention) == tuple(map(int, expected))


def test_one_part_alone() -> None:
    assert made("attention", {}, 3) == LayerGroups((0, 0, 0), (0, 1, 2))
    assert made("feed_forward", {}, 3) == LayerGroups((0, 1, 2), (0, 0, 0))


def test_the_last_round_of_cycle_reverse_is_reversed() -> None:
    """Takase and Kiyono's figure: of 9 layers with 3 groups, the last three come in reverse."""
    assert made("cyclic", {"groups": 3, "order": "cycle-reverse"}, 9).attention == (0, 1, 2, 0, 1, 2, 2, 1, 0)


def test_like_layers_are_found() -> None:
    alike = np.eye(6) * 0.9 + 0.1
    for a, b in ((0, 5), (1, 2), (2, 3), (1, 3)):
        alike[a, b] = alike[b, a] = 0.9
    assert made("cka", {"groups": 3, "contiguous": False}, 6, alike).attention == (0, 1, 1, 1, 2, 0)
    assert made("cka", {"groups": 4}, 6, alike).attention == (0, 1, 1, 1, 2, 3)


def test_the_cheapest_joins_are_made_one_after_the_other() -> None:
    seen = []

    def damage(groups: LayerGroups) -> float:
        """Joining 3 and 4 is cheapest, then 5 with those; 0 and 1 are cheap only while all others are alone."""
        assert groups.attention == groups.feed_forward
        seen.append(groups.attention)
        g = groups.attention
        if len(set(g)) == 5:
            joined = next(first for first, second in itertools.pairwise(g) if first == second)
            return (2.0, 9.0, 9.0, 1.0, 3.0)[joined]
        return {(0, 0, 1, 2, 2, 3): 8.0, (0, 1, 2, 3, 3, 3): 4.0}.get(g, 9.0)

    assert made("answers", {"groups": 4}, 6, damage=damage).attention == (0, 1, 2, 3, 3, 3)
    assert len(seen) == 5 + 4


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("contiguous", {"groups": 7}, "pattern.groups: 7 groups of 6 layers; use 1..6"),
        ("cka", {"groups": 7}, "pattern.groups: 7 groups of 6 layers; use 1..6"),
        ("answers", {"groups": 7}, "pattern.groups: 7 groups of 6 layers; use 1..6"),
        (
            "inner",
            {"inner": 2, "groups": 4},
            "pattern.groups: 4 groups of 3 rounds of 2 layers; use 1..3",
        ),
        ("inner", {"inner": 4}, "pattern.inner: inner groups of 4 layers do not divide 6 layers; use 1, 2, 3, 6"),
        (
            "listed",
            {"groups": [[0, 1], [3]]},
            "pattern.groups: the groups do not cover layers 2, 4, 5: the model's layers are 0..5; "
            "add [2], [4], [5] to keep them unshared",
        ),
        (
            "listed",
            {"groups": [[0, 1, 2], [2, 3, 4, 5]]},
            "pattern.groups: the groups overlap: layer 2 is in two; list each layer once",
        ),
        (
            "listed",
            {"groups": [[0, 1, 2, 2], [3, 4, 5]]},
            "pattern.groups: layer 2 is listed twice; list each layer once",
        ),
        ("listed", {"groups": [[0, 1, 2, 6]]}, "pattern.groups: layer 6 does not exist: allowed: 0..5"),
    ],
)
def test_what_cannot_be(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        made(kind, options, 6, np.eye(6))
    assert str(error.value) == message

"""Layer maps: the rules' numbers, and every way to get one wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.encoder.config import layer_maps as layermaps
from compress.errors import UserError


@pytest.mark.parametrize(
    ("name", "student", "teacher", "layers"),
    [
        ("uniform", 6, 12, [1, 3, 5, 7, 9, 11]),
        ("uniform", 4, 6, [1, 2, 4, 5]),
        ("tinybert", 4, 12, [2, 5, 8, 11]),
        ("first", 3, 6, [0, 1, 2]),
        ("last", 3, 6, [3, 4, 5]),
        ("every-other", 3, 6, [0, 2, 4]),
        ("pkd-skip", 6, 12, [1, 3, 5, 7, 9]),  # the paper's 2, 4, 6, 8, 10 counted from 1
        ("pkd-last", 6, 12, [6, 7, 8, 9, 10]),  # its 7..11
    ],
)
def test_the_rules_are_the_papers(name: str, student: int, teacher: int, layers: list[int]) -> None:
    assert layermaps.resolve(name, student, teacher) == tuple(enumerate(layers))


@given(st.sampled_from(sorted(layermaps.RULES)), st.integers(1, 24), st.integers(1, 48))
def test_a_rule_gives_a_legal_map_or_a_reason(name: str, student: int, teacher: int) -> None:
    try:
        pairs = layermaps.resolve(name, student, teacher)
    except UserError:  # the cases below say which
        return
    assert layermaps.check(pairs, student, teacher) == pairs
    theirs = [t for _, t in pairs]
    assert theirs == sorted(set(theirs))


@pytest.mark.parametrize(
    ("name", "student", "teacher", "message"),
    [
        ("unifrm", 3, 6, "did you mean 'uniform'?"),
        ("tinybert", 4, 6, "use uniform, or a student of 1, 2, 3, 6 layers"),
        ("every-other", 4, 6, "the teacher's layers are 0..5"),
        ("uniform", 7, 6, "the student has 7 layers, the teacher 6"),
        ("pkd-skip", 1, 6, "skips the last student layer"),
    ],
)
def test_a_rule_that_cannot_be_followed(name: str, student: int, teacher: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        layermaps.resolve(name, student, teacher)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "the layer map is empty"),
        ([(0, 6)], "layers [0, 6] do not exist"),
        ([(3, 0)], "allowed: student 0..2, teacher 0..5"),
        ([(0, 1), (0, 2)], "student layer 0 is listed twice"),
    ],
)
def test_a_wrong_list(pairs: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(UserError) as caught:
        layermaps.check(pairs, 3, 6)
    assert message in str(caught.value)

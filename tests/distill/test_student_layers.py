"""Which layers a student takes from its teacher, by rule or by number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError
from compress.stages.distill.initialization import Origin, plan_shape
from compress.stages.distill.layers import resolve, sentence
from compress.stages.distill.student_spec import LAYER_RULES, StudentSpec
from compress.stages.shared.model_shape import ModelShape


def layers(depth: int, **keys: Any) -> list[int]:
    return resolve(StudentSpec.model_validate(keys), depth)


@given(st.integers(1, 48), st.data())
def test_rules_take_so_many_layers_in_order(depth: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, depth))
    for rule in LAYER_RULES:
        if rule.startswith("every-other") and 2 * count - 1 > depth:
            with pytest.raises(UserError, match=f"every other layer of {depth} gives at most {(depth + 1) // 2}"):
                layers(depth, layers=rule, count=count)
            continue
        found = layers(depth, layers=rule, count=count)
        assert len(set(found)) == len(found) == count
        assert found == sorted(found)
        assert set(found) <= set(range(depth))


@given(st.integers(2, 48), st.data())
def test_uniform_is_as_even_as_whole_numbers_allow(depth: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, depth))
    found = layers(depth, layers="uniform", count=count)
    assert (found[0], found[-1]) == (0, depth - 1)
    np.testing.assert_allclose(found, np.linspace(0, depth - 1, count), atol=0.5 + 1e-9)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"layers": "every-other", "count": 6}, [0, 2, 4, 6, 8, 10]),
        ({"layers": "every-other-from-last", "count": 3}, [7, 9, 11]),
        ({"layers": "first", "count": 3}, [0, 1, 2]),
        ({"layers": "last", "count": 3}, [9, 10, 11]),
        ({"layers": "uniform", "count": 1}, [11]),
        ({"layers": [0, 5]}, [0, 5]),
        ({}, list(range(12))),
    ],
)
def test_twelve_layers(keys: dict[str, Any], expected: list[int]) -> None:
    assert layers(12, **keys) == expected


@pytest.mark.parametrize(
    ("rule", "depth", "expected"),
    [
        ("uniform", 12, [0, 2, 4, 7, 9, 11]),  # DistilBERT's, arXiv 1910.01108
        ("uniform", 6, [0, 2, 5]),
        ("every-other", 6, [0, 2, 4]),
        ("every-other-from-last", 6, [1, 3, 5]),
        ("every-other-from-last", 5, [0, 2, 4]),
        ("every-other-from-last", 1, [0]),
        ("first", 12, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_rule_alone_keeps_half(rule: str, depth: int, expected: list[int]) -> None:
    assert layers(depth, layers=rule) == expected


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"layers": "first", "count": 7}, "student.count: 7 layers cannot be taken from a teacher with 6 layers; use"),
        ({"layers": "every-other", "count": 4}, "student.count: every other layer of 6 gives at most 3: 4 were requ"),
        ({"layers": [0, 6]}, "student.layers: layer 6 does not exist: allowed: 0..5"),
    ],
)  # fmt: skip
def test_maps_that_do_not_fit(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as error:
        layers(6, **keys)
    assert str(error.value).startswith(line)


def test_the_map_in_words() -> None:
    assert sentence([0, 2], 3) == (
        "layer map (student layers from teacher, which has 0..2): 0 from 0, 1 from 2; not used: 1"
    )
    assert sentence([0], 1, "model").endswith("(student layers from model, which has 0..0): 0 from 0; not used: none")


@pytest.mark.parametrize(
    ("hidden", "heads", "half"), [(768, 12, 384), (384, 12, 192), (128, 2, 64), (60, 12, 24), (8, 8, 8)]
)
def test_half_of_the_width_is_what_the_heads_divide(hidden: int, heads: int, half: int) -> None:
    config = EncoderConfig.uniform(
        vocabulary=30, hidden=hidden, layers=4, heads=heads, feed_forward=4 * hidden, max_positions=16
    )
    how = StudentSpec.model_validate({"layers": "uniform", "hidden": "half", "init": "random"})
    made = plan_shape(how, ModelShape(4, 16, config=config)).config
    assert made is not None
    assert (made.hidden, made.layers[0].heads, made.layers[0].feed_forward) == (half, heads, 4 * half)
    assert (
        how.sentence() == "a student of half of the layers (uniform) of the teacher, half of its width, random weights"
    )


@pytest.mark.parametrize(
    ("how", "hidden", "found"),
    [
        ({"hidden": 8}, 8, True),
        ({"hidden": 8, "init": "selection"}, 8, True),
        ({"hidden": 8, "init": "random"}, 8, False),
        ({"intermediate_size": 8}, 16, False),
        (None, 8, False),
    ],
)
def test_a_student_is_narrowed_where_it_was_wider(how: dict[str, Any] | None, hidden: int, found: bool) -> None:
    def config(width: int) -> EncoderConfig:
        return EncoderConfig.uniform(vocabulary=9, hidden=width, layers=2, heads=2, feed_forward=16)

    donor: Any = SimpleNamespace(config=config(16))
    student: Any = SimpleNamespace(config=config(hidden))
    assert Origin(donor, None if how is None else StudentSpec(**how)).is_wider_than(student) is found

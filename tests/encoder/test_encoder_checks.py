"""Checks of single values of an encoder's config, and of how its layers hang together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.encoder.config import checks, wiring
from compress.encoder.config.layer_shape import LayerShape
from compress.errors import UserError

SHAPE = LayerShape(2, 4, 16)


def error_of(call: Callable[[], None]) -> str:
    with pytest.raises(UserError) as error:
        call()
    return str(error.value)


@given(st.integers(-5, 20), st.integers(-5, 5), st.integers(5, 15))
def test_integers_within_bounds(value: int, least: int, most: int) -> None:
    if least <= value <= most:
        checks.integer("n", value, least=least, most=most)
    else:
        assert error_of(lambda: checks.integer("n", value, least=least, most=most)) == (
            f"encoder.n: n is {value}: it must be {least}..{most}"
        )


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_integer(value: object) -> None:
    assert error_of(lambda: checks.positive("n", value)) == f"encoder.n: n must be an integer, not {value!r}"


def test_no_upper_bound() -> None:
    checks.positive("n", 10**9)
    assert error_of(lambda: checks.positive("n", 0)) == "encoder.n: n is 0: it must be at least 1"


@pytest.mark.parametrize("value", [True, "0.1", None, -0.1, 1, 1.5, math.nan, math.inf])
def test_shares(value: object) -> None:
    checks.probability("p", 0)
    checks.epsilon("p", 1e-12)
    assert error_of(lambda: checks.probability("p", value)).endswith("it must be at least 0 and below 1")
    assert error_of(lambda: checks.epsilon("p", value)).endswith("it must be above 0 and below 1")
    with pytest.raises(UserError):
        checks.epsilon("p", 0)


def test_choices() -> None:
    checks.choice("norm", "pre", ("pre", "post"))
    assert error_of(lambda: checks.choice("norm", "pots", ("pre", "post"))) == (
        "encoder.norm: unknown norm 'pots': known: pre, post; did you mean 'post'?"
    )
    assert (
        error_of(lambda: checks.choice("norm", 3, ("pre", "post"))) == "encoder.norm: unknown norm 3: known: pre, post"
    )


def test_keys() -> None:
    @dataclass
    class Config:
        hidden: int
        heads: int = 2

    checks.check_keys(Config, {"hidden": 1}, "encoder")
    assert error_of(lambda: checks.check_keys(Config, {"hiden": 1}, "encoder")) == (
        "encoder.hiden: unknown key 'hiden'; did you mean 'hidden'?"
    )
    assert error_of(lambda: checks.check_keys(Config, {"heads": 1}, "encoder")) == "encoder: missing key 'hidden'"


def test_lists() -> None:
    assert [checks.is_list(x) for x in ([], (1,), "ab", b"ab", {1}, None)] == [True, True, False, False, False, False]


def test_a_first_norm_may_be_missing_of_an_unshared_first_layer() -> None:
    wiring.check_first_norm("pre", (0, 1), first_norm=False)
    wiring.check_first_norm("post", (0, 0), first_norm=True)
    for norm, groups in (("post", (0, 1)), ("pre", (0, 0))):
        assert "first_norm is false" in error_of(
            lambda n=norm, g=groups: wiring.check_first_norm(n, g, first_norm=False)
        )


@pytest.mark.parametrize(
    ("bases", "positions", "width", "line"),
    [
        (None, "rotary", 4, "encoder.rotary_bases: rotary_bases and positions: rotary must be set together"),
        ((1e4,), "learned", 4, "encoder.rotary_bases: rotary_bases and positions: rotary must be set together"),
        ((1e4, 1e4), "rotary", 4, "encoder.rotary_bases: rotary_bases must list a number for each of 1 layers"),
        ((1.0,), "rotary", 4, "encoder.rotary_bases: invalid rotary base 1.0: it must be a number above 1"),
        ((True,), "rotary", 4, "encoder.rotary_bases: invalid rotary base True: it must be a number above 1"),
        ((math.inf,), "rotary", 4, "encoder.rotary_bases: invalid rotary base inf: it must be a number above 1"),
        ((9.,), "rotary", 3, "encoder.layers.0: a head width of 3 is odd: rotary positions rotate pairs of dimensions"),
    ],
)  # fmt: skip
def test_rotary_bases(bases: Any, positions: str, width: int, line: str) -> None:
    wiring.check_rotary((1e4,), "rotary", [SHAPE])
    wiring.check_rotary(None, "learned", [LayerShape(2, 3, 16)])
    assert error_of(lambda: wiring.check_rotary(bases, positions, [LayerShape(2, width, 16)])) == line


def test_layers_of_a_group_have_one_shape() -> None:
    other = LayerShape(1, 4, 16)
    wiring.check_groups((0, 1, 0), [SHAPE, other, SHAPE])
    assert error_of(lambda: wiring.check_groups((0, 0), [SHAPE, other])).startswith(
        "encoder.layer_groups: layers 0 and 1 are in one group but have different shapes: "
    )
    assert "use 1" in error_of(lambda: wiring.check_groups((0, 2), [SHAPE, SHAPE]))
    assert "1 entries for 2 layers" in error_of(lambda: wiring.check_groups((0,), [SHAPE, SHAPE]))


@pytest.mark.parametrize(
    ("windows", "tokens", "positions", "shared", "line"),
    [
        (None, 1, "learned", False, "need a window in every layer"),
        ((4, None), 1, "learned", False, "need a window in every layer"),
        ((4,), 2, "learned", False, "global projections for 2 tokens: at most 1"),
        ((4,), 1, "rotary", False, "global projections and rotary positions cannot be used together"),
        ((4,), 1, "learned", True, "encoder.sharing: layers with global projections cannot share some of their"),
    ],
)  # fmt: skip
def test_global_projections(windows: Any, tokens: int, positions: str, shared: bool, line: str) -> None:
    wiring.check_global_projections((4, 4), 1, "learned", shared=False)
    assert line in error_of(lambda: wiring.check_global_projections(windows, tokens, positions, shared=shared))

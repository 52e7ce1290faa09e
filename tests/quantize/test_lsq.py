"""Learned steps: how many there are, where they start, and the gradients of the paper."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from compress.contracts import Scheme
from compress.errors import UserError
from compress.quantizers._base import affine, balanced_codes
from compress.quantizers._learned import full
from compress.quantizers._rounding import clamp_codes, expand_scale, learned_fake_quantize, round_through
from compress.quantizers.lsq import Quantizer

MATRIX = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))


def started(x: Tensor, on: str = "weight", **options: Any) -> Quantizer:
    made = Quantizer(None if on == "input" else tuple(x.shape), **options)
    made.observe(x)
    made.freeze()
    return made


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (3,)),
        ({"per": "tensor"}, ()),
        ({"per": "group", "group": 4}, (3, 3)),
        ({"per": "group", "group": 64}, (3, 1)),
    ],
)
def test_how_many_steps_a_matrix_has(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    made = started(MATRIX, **options)
    assert made.scale.shape == shape
    assert bool((made.scale > 0).all())
    assert made(MATRIX).shape == MATRIX.shape
    assert float((made(MATRIX) - MATRIX).detach().abs().max()) < 0.05


def test_before_it_has_seen_anything_it_answers_nothing() -> None:
    assert bool(Quantizer((3, 10))(MATRIX).isnan().all())
    with pytest.raises(UserError, match="NaN or infinity"):
        Quantizer((3, 10)).freeze()
    with pytest.raises(UserError, match="no activations were observed"):
        Quantizer().freeze()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_none(bad: float) -> None:
    broken = MATRIX.clone()
    broken[1, 2] = bad
    for on in ("weight", "input"):
        with pytest.raises(UserError, match="NaN or infinity"):
            started(broken, on)


def test_a_weights_last_state_counts_and_an_inputs_whole_history() -> None:
    weight = Quantizer((1, 2), per="tensor")
    for x in (100 * torch.ones(1, 2), torch.tensor([[0.5, -1.0]])):
        weight.observe(x)
    weight.freeze()
    assert float(weight.scale.detach()) < 0.01
    first, both = Quantizer(), Quantizer()
    for made, seen in ((first, [0.01]), (both, [0.01, 1.0])):
        for size in seen:
            made.observe(size * torch.linspace(-1, 1, 101))
        made.freeze()
    assert float(both.scale.detach()) > 10 * float(first.scale.detach())


@pytest.mark.parametrize("count", [4, 16])
def test_the_steps_gradient_is_scaled_by_the_numbers_that_share_it(count: int) -> None:
    """At a step of 1, x = 0.25 rounds to 0: d/ds = (0 - 0.25) a number (equation 3), times 1/sqrt(N Qp)."""
    made = Quantizer((1, count), bits=4, per="tensor")
    with torch.no_grad():
        made.scale.fill_(1.0)
    made(torch.full((1, count), 0.25)).sum().backward()
    assert made.scale.grad is not None
    assert made.scale.grad.item() == pytest.approx(-0.25 * count / math.sqrt(count * 7))


@pytest.mark.parametrize(("clamp", "inside"), [("first", 0.0), ("last", 1.0)])
def test_half_a_step_beyond_the_last_code(clamp: Any, inside: float) -> None:
    made = Quantizer((1, 1), bits=4, per="tensor", clamp=clamp)
    with torch.no_grad():
        made.scale.fill_(1.0)
    x = torch.tensor([[7.25]], requires_grad=True)
    out = made(x)
    assert out.item() == 7
    out.backward()
    assert x.grad is not None
    assert x.grad.item() == inside


def by_equations(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme, clamp: str) -> Tensor:
    """The same as a chain of operations that torch differentiates, in double precision."""
    wide, zero = expand_scale(scale, x, scheme), expand_scale(zero_point, x, scheme)
    if clamp == "last":
        return (clamp_codes(round_through(x / wide, scheme) + zero, scheme) - zero) * wide
    steps, low, high = x / wide, scheme.lowest - zero, scheme.highest - zero
    return round_through(torch.where(steps <= low, low, torch.where(steps >= high, high, steps)), scheme) * wide


@pytest.mark.parametrize("clamp", ["first", "last"])
@pytest.mark.parametrize(
    ("scheme", "size", "zero"),
    [
        (full(8, "row"), (3,), 0.0),
        (full(3, "tensor"), (), 0.0),
        (balanced_codes(2, "row"), (3,), 0.0),
        (balanced_codes(2, "group", 4), (3, 3), 0.0),
        (affine(4), (), 6.0),
    ],
)
def test_gradients_are_those_of_the_equations(scheme: Scheme, size: tuple[int, ...], zero: float, clamp: Any) -> None:
    gradient = torch.randn(MATRIX.shape, generator=torch.Generator().manual_seed(1))
    scale = 0.6 * MATRIX.abs().max() / scheme.highest * torch.ones(size)
    given = (MATRIX, scale, torch.full(size, zero))
    ours, theirs = ([t.clone().to(kind).requires_grad_() for t in given] for kind in (torch.float32, torch.float64))
    made = learned_fake_quantize(ours[0], ours[1], ours[2], scheme, clamp)
    expected = by_equations(theirs[0], theirs[1], theirs[2], scheme, clamp)
    assert torch.allclose(made.double(), expected)
    made.backward(gradient)
    expected.backward(gradient.double())
    for one, other in zip(ours, theirs, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad.double(), other.grad, rtol=1e-4, atol=1e-5)


def test_balanced_codes_are_never_zero() -> None:
    made = started(MATRIX, bits=2, balanced=True)
    found = made.export(MATRIX)
    assert set(found.codes.unique().tolist()) <= {-3, -1, 1, 3}
    with pytest.raises(UserError, match="balanced codes have at most 7 bits"):
        Quantizer((3, 10), bits=8, balanced=True)


def test_a_row_of_zeros_stays_zero() -> None:
    zeros = torch.cat([torch.zeros(1, 10), MATRIX])
    assert not started(zeros)(zeros)[0].any()


def test_steps_in_half_precision_are_what_is_exported() -> None:
    made = started(1e-7 * MATRIX, scale_dtype="fp16")
    scale, _ = made.scale_and_zero_point()
    assert torch.equal(scale, scale.half().float())
    assert bool((scale > 0).all())
    assert torch.equal(made.export(MATRIX).scale, scale)


def test_a_step_that_training_pushed_below_zero() -> None:
    made = started(MATRIX)
    with torch.no_grad():
        made.scale.mul_(-1)
    assert bool(made(MATRIX).isfinite().all())
    assert bool((made.scale_and_zero_point()[0] > 0).all())

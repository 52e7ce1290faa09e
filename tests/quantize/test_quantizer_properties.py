"""Laws that hold for every quantizer, on any numbers: all that the registry finds, in every place that each fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_quantizers import PLACES, built
from torch import Tensor

from compress.contracts import Scheme
from compress.quantizers._rounding import dequantize, expand_scale, fake_quantize, learned_fake_quantize

EXAMPLES = settings(max_examples=15, deadline=None)
"""Each builds a quantizer and, of some, looks for the best range."""


@st.composite
def numbers(draw: st.DrawFn) -> Tensor:
    """(rows, width) of any size, off centre or not, now and then a row of zeros or one number far out."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    rows, width = draw(st.integers(1, 6)), draw(st.integers(2, 40))
    x = torch.randn(rows, width, generator=generator) + draw(st.sampled_from([0.0, 0.0, 2.0, -3.0]))
    if draw(st.booleans()):
        x[0, 0] *= 50
    if rows > 1 and draw(st.booleans()):
        x[-1] = 0
    return x * 10.0 ** draw(st.integers(-6, 6))


def step(quantizer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(step, zero point, code before clamping) of every number of x."""
    scale, zero = quantizer.scale_and_zero_point(x)
    wide, point = (expand_scale(t.detach(), x, quantizer.scheme).expand_as(x) for t in (scale, zero))
    return wide, point, torch.round(x / wide) + point


@pytest.mark.parametrize(("kind", "on"), PLACES)
@EXAMPLES
@given(x=numbers(), bits=st.sampled_from([2, 3, 4, 7, 8]), data=st.data())
def test_laws_of_rounding(kind: str, on: str, x: Tensor, bits: int, data: st.DataObject) -> None:
    quantizer = built(kind, on, x, bits=bits)
    scheme: Scheme = quantizer.scheme
    y, integers = quantizer(x).detach(), quantizer.export(x)

    # What is deployed is what was trained and measured, to the last bit.
    assert torch.equal(dequantize(integers), y)
    wide, point, codes = step(quantizer, x)
    assert torch.equal(integers.codes.float(), codes.clamp(scheme.lowest, scheme.highest))

    # Scale and zero point.
    assert bool(((wide > 0) & torch.isfinite(wide)).all())
    assert torch.equal(point, point.round())
    assert scheme.lowest <= float(point.min()) <= float(point.max()) <= scheme.highest
    if scheme.signed:
        assert not bool(point.any())
        if not quantizer.calibrated:
            assert torch.equal(quantizer.scale_and_zero_point(-x)[0], quantizer.scale_and_zero_point(x)[0])
            assert torch.equal(quantizer(-x), -y)

    # At most half a step off where nothing is clamped, at the ends of the range where something is.
    inside = (codes >= scheme.lowest) & (codes <= scheme.highest)
    assert bool(((y - x).abs() <= 0.5 * wide * (1 + 1e-4))[inside].all())
    ends = torch.where(codes > scheme.highest, scheme.highest - point, scheme.lowest - point) * wide
    assert torch.equal(y[~inside], ends[~inside])
    if scheme.signed and not quantizer.calibrated:
        assert bool(inside.all()), "a scale that follows its numbers clips none of them"

    # Rounding what is rounded changes nothing; zero stays zero.
    assert torch.equal(quantizer.export(y).codes, integers.codes)
    assert torch.allclose(quantizer(y).detach(), y, rtol=1e-5, atol=0)
    assert not bool(y[x == 0].any())

    # A row's answer does not depend on its batch, nor a row of a table on which others are looked up.
    row = data.draw(st.integers(0, len(x) - 1))
    if on == "input":
        assert torch.equal(quantizer(x[row : row + 1]).detach(), y[row : row + 1])
    if on == "table":
        assert torch.equal(quantizer(x[row : row + 1], of=x).detach(), y[row : row + 1])


@pytest.mark.parametrize(("kind", "on"), PLACES)
@EXAMPLES
@given(x=numbers())
def test_gradients_pass_where_nothing_is_clamped(kind: str, on: str, x: Tensor) -> None:
    quantizer = built(kind, on, x[:, : max(2, x.shape[1] // 2)] if on == "input" else x, bits=4)
    wide, point, codes = step(quantizer, x)
    asked = x.clone().requires_grad_()
    quantizer(asked).sum().backward()
    low, high = quantizer.scheme.lowest, quantizer.scheme.highest
    inside = (codes >= low) & (codes <= high)
    if quantizer.clamp == "first":  # learned steps: a number beyond the last code is clamped before it is rounded
        inside = (x / wide > low - point) & (x / wide < high - point)
    assert asked.grad is not None
    assert torch.equal(asked.grad, inside.float())


def test_straight_through_with_a_fixed_step() -> None:
    """4 bits, step 0.1, L = sum of y: the vector that learned steps are tested with."""
    x = torch.tensor([-1.3, -0.26, 0.04, 0.49, 0.51, 2.2], requires_grad=True)
    y = fake_quantize(x, torch.tensor(0.1), torch.tensor(0.0), Scheme(4, -8, 7, "tensor"))
    y.sum().backward()
    assert torch.allclose(y.detach(), torch.tensor([-0.8, -0.3, 0.0, 0.5, 0.5, 0.7]))
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("clamp", ["first", "last"])
def test_a_number_that_is_none_stays_none(clamp: str) -> None:
    """Training stops where weights or inputs are NaN: no code may stand in for them."""
    scheme = Scheme(bits=8, lowest=-128, highest=127, per="tensor")
    x = torch.tensor([float("nan"), 1.0])
    found = learned_fake_quantize(x, torch.tensor(1.0), torch.tensor(0.0), scheme, clamp)  # type: ignore[arg-type]
    assert found.isnan().tolist() == [True, False]

"""Scales by group: groups that do not divide a row, scales that are fitted, and rows that do not see each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from compress.quantizers._learned import fit_scale, full, gradient_factor, split_groups
from compress.quantizers.per_group import Quantizer


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def error(made: Quantizer, x: Tensor) -> float:
    return float((made(x) - x).square().sum())


@pytest.mark.parametrize(("width", "group", "groups"), [(10, 4, 3), (8, 4, 2), (3, 4, 1), (5, 2, 3), (1, 2, 1)])
def test_the_last_group_may_be_smaller(width: int, group: int, groups: int) -> None:
    x = drawn(2, width)
    parts = split_groups(x, group)
    assert parts.shape == (2, groups, group)
    assert torch.equal(parts.flatten(1)[:, :width], x)
    assert not parts.flatten(1)[:, width:].any()
    made = Quantizer((2, width), group=group, bits=8)
    assert made.scale_and_zero_point(x)[0].shape == (2, groups)
    torch.testing.assert_close(made(x), x, atol=0.03, rtol=0)
    assert made.export(x).codes.shape == x.shape


def test_a_group_does_not_see_its_neighbours() -> None:
    x = drawn(2, 8)
    louder = x.clone()
    louder[0, 4:] *= 1000
    made = Quantizer((2, 8), group=4)
    assert torch.equal(made(louder)[0, :4], made(x)[0, :4])
    assert torch.equal(made(louder)[1], made(x)[1])
    assert torch.equal(made(x[1:]), made(x)[1:])


def test_the_range_max_covers_every_value_and_mse_has_the_smaller_error() -> None:
    x = drawn(6, 32)
    x[:, 0] *= 8
    widest, fitted = (Quantizer((6, 32), bits=3, group=16, range=r) for r in ("max", "mse"))  # pyright: ignore[reportArgumentType]
    scale = widest.scale_and_zero_point(x)[0]
    assert bool((x.abs() <= 3 * scale.repeat_interleave(16, 1) * (1 + 1e-6)).all())
    assert error(fitted, x) < error(widest, x)


@pytest.mark.parametrize("range_", ["max", "mse"])
@pytest.mark.parametrize("options", [{}, {"scale_dtype": "fp16"}], ids=str)
def test_zeros_stay_zero(options: dict[str, Any], range_: Any) -> None:
    made = Quantizer((2, 8), group=4, range=range_, **options)
    assert not made(torch.zeros(2, 8)).any()
    assert bool((made.scale_and_zero_point(torch.zeros(2, 8))[0] > 0).all())


@pytest.mark.parametrize("per", ["row", "tensor", "group"])
def test_a_fitted_scale_is_no_worse_than_any_that_was_tried(per: str) -> None:
    x = drawn(3, 12)
    x[0, 0] = 20.0
    scheme = full(4, per, 4 if per == "group" else None)
    scale = fit_scale(x, scheme)
    assert scale.shape == {"row": (3,), "tensor": (), "group": (3, 3)}[per]
    rows = {"row": x, "tensor": x.reshape(1, -1), "group": split_groups(x, 4)}[per]
    widest = rows.abs().amax(-1) / 7

    def lost(s: Tensor) -> Tensor:
        wide = s[..., None]
        return ((rows / wide).round().clamp(-8, 7) * wide - rows).square().sum(-1)

    best = lost(scale.reshape(widest.shape))
    for part in (1.0, 0.8, 0.5, 0.25):
        assert bool((best <= lost(widest * part) + 1e-5).all())


def test_the_factor_of_a_steps_gradient() -> None:
    assert gradient_factor(16, full(4, "tensor")) == pytest.approx(1 / (16 * 7) ** 0.5)
    assert gradient_factor(1, full(2, "tensor")) == 1.0

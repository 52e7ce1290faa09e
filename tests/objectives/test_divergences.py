"""Divergences of distributions by their laws, and the two objectives whose statistics can be zero."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from objective_cases import ar, batch_of, leaf
from torch import Tensor

from compress.contracts import EncoderOutput
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.layer_maps import ModelPair
from compress.objectives import cka, minilmv2
from compress.objectives._divergences import compute_divergence, standardize

KINDS: list[Any] = ["forward", "reverse", "symmetric", "jensen_shannon"]
OURS, THEIRS = ar((4, 5), 2, 0.3), ar((4, 5), 2, 1.1)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_zero_for_equals_alone_and_does_not_see_a_constant(kind: Any) -> None:
    same = compute_divergence(OURS + 3, OURS, 2.0, kind)
    torch.testing.assert_close(same, torch.zeros(4).double(), atol=1e-12, rtol=0)
    assert bool((compute_divergence(OURS, THEIRS, 2.0, kind) > 1e-3).all())


def test_the_kinds_by_each_other() -> None:
    forward, reverse, symmetric, mixed = (compute_divergence(OURS, THEIRS, 1.5, kind) for kind in KINDS)
    torch.testing.assert_close(reverse, compute_divergence(THEIRS, OURS, 1.5))
    torch.testing.assert_close(symmetric, (forward + reverse) / 2)
    torch.testing.assert_close(mixed, compute_divergence(THEIRS, OURS, 1.5, "jensen_shannon"))
    assert not torch.allclose(forward, reverse)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_certain_models_have_finite_values_and_gradients(kind: Any, size: float) -> None:
    ours, theirs = leaf(torch.tensor([[size, 0.0, -size]])), torch.tensor([[-size, 0.0, size]])
    value = compute_divergence(ours, theirs, 1.0, kind)
    assert bool(value.isfinite().all())
    if kind == "jensen_shannon":
        assert value.item() == pytest.approx(math.log(2)), "its greatest value"
    value.sum().backward()
    assert ours.grad is not None
    assert bool(ours.grad.isfinite().all())


def test_standardized_logits_do_not_depend_on_scale_and_place() -> None:
    torch.testing.assert_close(standardize(3 * OURS + 7), standardize(OURS))
    rows = standardize(OURS)
    torch.testing.assert_close(rows.mean(-1), torch.zeros(4).double())
    torch.testing.assert_close(rows.square().mean(-1), torch.ones(4).double())


@pytest.mark.parametrize("shape", [(2, 4), (2, 1)])
def test_equal_logits_have_a_finite_gradient(shape: tuple[int, int]) -> None:
    """As a head of zeros gives them: one NaN here, and every weight is NaN after the first step."""
    logits = torch.zeros(shape, requires_grad=True)
    (standardize(logits) * ar(shape).float()).sum().backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


def config(heads: int, hidden: int) -> EncoderConfig:
    return EncoderConfig.uniform(vocabulary=9, hidden=hidden, layers=1, heads=heads, feed_forward=8)


def cka_loss(x: Tensor, y: Tensor) -> Tensor:
    objective = cka.Objective()
    objective.bind(ModelPair(config(1, x.shape[1]), config(1, y.shape[1]), ((0, 0),)))
    outputs = [EncoderOutput(one, hidden_states=(one, one)) for one in (x, y)]
    return objective(outputs[0], outputs[1], batch_of([len(x)]))


def test_tokens_that_are_all_equal_have_no_geometry_and_a_finite_gradient() -> None:
    for rows in (2, 9):  # through either matrix
        x = leaf(torch.ones(rows, 4))
        value = cka_loss(x, ar((rows, 4)).float())
        assert value.item() == pytest.approx(1)
        value.backward()
        assert x.grad is not None
        assert bool(x.grad.isfinite().all())
    assert cka_loss(torch.ones(1, 4), torch.ones(1, 4)).item() == 0


def test_both_ways_to_compute_cka_agree() -> None:
    wide, narrow = ar((5, 8), 1, 0.2), ar((5, 8), 1, 0.9)
    padded = [torch.cat([x, torch.zeros(5, 3).double()], 1)[:, :8] for x in (wide, narrow)]
    few = cka_loss(wide, narrow)
    many = cka_loss(*(torch.linalg.qr(x.T).R.T for x in padded))  # the same Gram matrices in five channels
    torch.testing.assert_close(few, many)


@pytest.mark.parametrize(
    ("widths", "heads"), [((384, 768), 48), ((312, 768), 3), ((16, 24), 1), ((8, 8), 1), ((7, 11), 1), ((64, 64), 8)]
)
def test_relation_heads_that_nobody_named(widths: tuple[int, int], heads: int) -> None:
    objective = minilmv2.Objective()
    objective.bind(ModelPair(config(1, widths[0]), config(1, widths[1]), ((0, 0),)))
    assert objective.relation_heads == heads

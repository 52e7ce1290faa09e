"""Optimal brain surgery finds what least squares says, and sees what stands in for what."""

from __future__ import annotations

import pytest
import torch
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compress.stages.prune_width import obs as surgery
from compress.stages.prune_width.obs import DAMPING, Factors, Moments, compute_elimination_losses


def of(inputs: Tensor, slopes: Tensor) -> Factors:
    """Factors of inputs with this covariance, about 0."""
    moments = Moments()
    moments.second, moments.tokens = torch.block_diag(inputs, torch.ones(1, 1).double()), 1
    return Factors(moments, slopes, biased=True)


def drawn(seed: int, blocks: int, width: int, outputs: int = 5) -> tuple[Tensor, Factors]:
    """A matrix and its factors, of inputs that say partly the same."""
    dice = torch.Generator().manual_seed(seed)
    n = blocks * width
    x = torch.randn(400, n, generator=dice, dtype=torch.float64) @ torch.randn(n, n, generator=dice).double()
    slopes = torch.randn(60, outputs, generator=dice, dtype=torch.float64)
    weight = torch.randn(outputs, n, generator=dice, dtype=torch.float64)
    return weight, of(x.T @ x / 400, slopes.T @ slopes / 60)


def lost(weight: Tensor, given: Factors, gone: list[int], width: int) -> float:
    """Half the error of the best fit to what is left, weighed by the slopes, by the normal equations."""
    damped = [f + DAMPING * f.diagonal().mean() * torch.eye(len(f)).double() for f in (given.inputs, given.slopes)]
    inputs, slopes = damped
    out = torch.tensor([b * width + i for b in gone for i in range(width)])
    left = torch.tensor([i for i in range(len(inputs)) if i not in set(out.tolist())], dtype=torch.int64)
    moved = weight[:, out]
    error = inputs[out][:, out]
    if len(left):
        error = error - inputs[out][:, left] @ torch.linalg.solve(inputs[left][:, left], inputs[left][:, out])
    return float((moved.T @ slopes @ moved * error).sum()) / 2


@settings(max_examples=scaled(40), deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 3))
def test_what_goes_costs_what_least_squares_says(seed: int, blocks: int, width: int) -> None:
    weight, factors = drawn(seed, blocks, width)
    rises = compute_elimination_losses(weight, factors, width)
    order = rises.argsort().tolist()
    assert len(set(rises.tolist())) == blocks
    alone = [lost(weight, factors, [b], width) for b in range(blocks)]
    assert order[0] == min(range(blocks), key=lambda b: alone[b])
    assert float(rises[order[0]]) == pytest.approx(alone[order[0]], rel=1e-6)
    total, step = 0.0, 0.0
    for count, block in enumerate(order, 1):
        before = lost(weight, factors, order[: count - 1], width) if count > 1 else 0.0
        # what goes later never counts as less than what went before
        step = max(step, lost(weight, factors, order[:count], width) - before)
        total += float(rises[block])
        assert float(rises[block]) == pytest.approx(step, rel=1e-5, abs=1e-9)
    assert total >= lost(weight, factors, order, width) * (1 - 1e-6)


def test_of_two_that_say_the_same_one_goes_for_nothing() -> None:
    weight, factors = drawn(1, 6, 1)
    twin = torch.cat([torch.eye(6), torch.eye(6)[:1]]).double()  # the seventh input is the first once more
    both = of(twin @ factors.inputs @ twin.T, factors.slopes)
    weight = torch.cat([weight, weight[:, :1]], 1)
    order = compute_elimination_losses(weight, both, 1).argsort().tolist()
    assert order[0] in (0, 6)
    assert ({0, 6} - {order[0]}).pop() not in order[:3]


def test_what_the_answers_do_not_read_goes_first() -> None:
    _, factors = drawn(3, 4, 1, outputs=4)
    weight = torch.eye(4).double()
    slopes = torch.diag(torch.tensor([1.0, 0.0, 1.0, 1.0])).double()
    assert int(compute_elimination_losses(weight, of(factors.inputs, slopes), 1).argmin()) == 1


def test_blocks_that_go_together_cost_what_they_cost_together(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, factors = drawn(5, 24, 1)
    monkeypatch.setattr(surgery, "AT_ONCE", 4)
    rises = compute_elimination_losses(weight, factors, 1)
    order = rises.argsort().tolist()
    together = lost(weight, factors, order[:6], 1)  # a quarter of 24 go in the first turn
    assert float(rises[order[:6]].sum()) == pytest.approx(together, rel=1e-6)


@pytest.mark.parametrize("biased", [True, False])
def test_a_bias_makes_good_for_the_mean(biased: bool) -> None:
    dice = torch.Generator().manual_seed(2)
    x = torch.randn(500, 3, generator=dice) + 4
    moments = Moments()
    for part in x.split(200):
        moments.add(part)
    wanted = torch.cov(x.T, correction=0) if biased else x.T @ x / 500
    found = Factors(moments, torch.eye(2).double(), biased).inputs
    torch.testing.assert_close(found, wanted.double(), rtol=1e-4, atol=1e-4)

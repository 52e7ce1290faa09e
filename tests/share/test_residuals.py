"""Residuals: nearest in the metric of the inputs, exact at full rank, and never worse for being fitted together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from compress.contracts import Member
from compress.stages.share.residuals import Factors, fit_nearest, fit_residuals, truncate_to_rank
from compress.stages.share.starts.activation import Start as Activation
from compress.stages.share.starts.mean import Start as Mean

OUT, IN = 7, 5


def members(bias: bool = False, count: int = 3) -> list[Member]:
    random = torch.Generator().manual_seed(4)
    found = []
    for _ in range(count):
        spread = torch.randn(IN, IN, generator=random, dtype=torch.float64)
        x = torch.randn(90, IN, generator=random, dtype=torch.float64) @ spread + 0.5
        if bias:
            x = torch.cat([x, torch.ones(90, 1, dtype=torch.float64)], 1)
        weight = torch.randn(OUT, x.shape[1], generator=random, dtype=torch.float64)
        found.append(Member(weight, x.T @ x / len(x)))
    return found


def missed(members: Sequence[Member], shared: Tensor, residuals: Sequence[Factors]) -> float:
    """Sum over layers of E|W x - W_l x|^2."""
    total = 0.0
    for member, (up, down) in zip(members, residuals, strict=True):
        assert member.inputs is not None
        left = member.weight - shared
        left = torch.cat([left[:, :IN] - up @ down, left[:, IN:]], 1)
        total += float((left @ member.inputs @ left.T).trace())
    return total


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [1, 3])
def test_no_other_matrix_of_that_rank_is_nearer(bias: bool, rank: int) -> None:
    found, nothing = members(bias, 1), torch.zeros(OUT, IN + bias, dtype=torch.float64)
    assert found[0].inputs is not None
    up, down = fit_nearest(found[0].weight, rank, found[0].inputs, IN)
    assert (up.shape, down.shape) == ((OUT, rank), (rank, IN))
    torch.testing.assert_close(up.norm(dim=0), down.norm(dim=1))
    best = missed(found, nothing, [(up, down)])
    assert best < missed(found, nothing, [truncate_to_rank(found[0].weight[:, :IN], rank)])
    random = torch.Generator().manual_seed(2)
    for _ in range(20):
        stirred = [t + 0.03 * torch.randn(t.shape, generator=random, dtype=torch.float64) for t in (up, down)]
        assert missed(found, nothing, [(stirred[0], stirred[1])]) > best


@pytest.mark.parametrize("bias", [False, True])
def test_fitted_together_is_nearer_than_one_after_the_other(bias: bool) -> None:
    found, start = members(bias), Activation()
    alone = start(found)
    shared, residuals = fit_residuals(start, found, IN, 2)
    after = [truncate_to_rank((m.weight - alone)[:, :IN], 2) for m in found]
    once = [fit_nearest(m.weight - alone, 2, m.inputs, IN) for m in found if m.inputs is not None]
    assert missed(found, shared, residuals) < missed(found, alone, once) < missed(found, alone, after)


def test_full_rank_restores_every_layer() -> None:
    found = members()
    for start in (Activation(), Mean()):
        shared, residuals = fit_residuals(start, found, IN, IN)
        for member, (up, down) in zip(found, residuals, strict=True):
            torch.testing.assert_close(shared + up @ down, member.weight)


def test_a_start_that_reads_no_inputs_has_the_truncated_svd_of_the_difference() -> None:
    found = members()
    shared, residuals = fit_residuals(Mean(), found, IN, 2)
    assert torch.equal(shared, Mean()(found))
    for member, (up, down) in zip(found, residuals, strict=True):
        singular = torch.linalg.svdvals(member.weight - shared)
        assert float((member.weight - shared - up @ down).norm()) == pytest.approx(float(singular[2:].norm()))

"""What each layer adds to the matrix that it shares: the difference at low rank (relaxed sharing, 2410.20672).

Without knowledge of the inputs it is the truncated SVD of the difference. Where they are known it is the matrix of that
rank whose products are nearest to those that are missing (the truncated SVD in the metric of the inputs, which is
reduced-rank regression), and shared matrix and residuals are fitted in turn, each to what the other leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Member, SharedStart

ROUNDS = 5
RIDGE = 1e-3
"""Added to the inputs' second moments, as a share of their mean square: directions that no input has count a little."""
Factors = tuple[Tensor, Tensor]
"""Up (out, r) and down (r, in), each pair of a column and a row of one length."""


def fit_residuals(start: SharedStart, members: Sequence[Member], width: int, rank: int) -> tuple[Tensor, list[Factors]]:
    """(what the members share, shaped as their weights; of each member its residual of this rank), fp64.

    width: in; members may have the bias as one more column, which no residual has.
    """
    shared = start(members)
    moments = [member.inputs for member in members if member.inputs is not None]
    if start.reads != "inputs" or len(moments) < len(members):
        return shared, [truncate_to_rank((member.weight - shared)[:, :width], rank) for member in members]
    found: list[Factors] = []
    for turn in range(ROUNDS):
        if turn:
            shared = start([_without(m, up @ down) for m, (up, down) in zip(members, found, strict=True)])
        found = [fit_nearest(m.weight - shared, rank, x, width) for m, x in zip(members, moments, strict=True)]
    return shared, found


def truncate_to_rank(difference: Tensor, rank: int) -> Factors:
    """The nearest matrix of this rank, every number counting alike."""
    return _balanced(*_leading(difference, rank))


def fit_nearest(missing: Tensor, rank: int, inputs: Tensor, width: int) -> Factors:
    """U D of this rank with the least E|missing x - U D x|^2.

    missing: (out, in), or (out, in+1) where x ends with a 1, which U D does not see.  inputs: mean of x xᵀ.  width: in.
    """
    seen = inputs[:width, :width]
    ridge = RIDGE * float(seen.diagonal().mean())
    lower = torch.linalg.cholesky(seen + ridge * torch.eye(width, dtype=seen.dtype))
    # missing x regressed on x is `wanted` (L Lᵀ)⁻¹; in the metric of L what is left is a plain truncated SVD.
    wanted = missing @ inputs[:, :width] + ridge * missing[:, :width]
    up, down = _leading(torch.linalg.solve_triangular(lower, wanted.T, upper=False).T, rank)
    return _balanced(up, torch.linalg.solve_triangular(lower, down, upper=False, left=False))


def _leading(matrix: Tensor, rank: int) -> Factors:
    """The truncated SVD, by the eigenvectors of the smaller Gram matrix: much faster, and exact at full rank too."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    vectors = torch.linalg.eigh(wide @ wide.T)[1][:, -rank:]
    left, right = vectors, vectors.T @ wide
    return (left, right) if wide is matrix else (right.T, left.T)


def _balanced(up: Tensor, down: Tensor) -> Factors:
    long, wide = up.norm(dim=0), down.norm(dim=1)
    length = (long * wide).sqrt()
    return F.normalize(up, dim=0) * length, F.normalize(down, dim=1) * length[:, None]


def _without(member: Member, residual: Tensor) -> Member:
    weight = member.weight.clone()
    weight[:, : residual.shape[1]] -= residual
    return dataclasses.replace(member, weight=weight)

"""SparseGPT (Frantar and Alistarh 2023, arXiv 2301.00774): kept weights are refitted so that outputs change least.

From the first four columns to the last, with H the inputs' second moments over the columns that are still free: of each
row the pair P goes whose exact cost w_P ([H⁻¹]_PP)⁻¹ w_P is least (optimal brain surgeon), and all free weights take up
what is lost. Beyond the paper: a pair is judged together, where the paper adds up two costs; and at the end the weights
that stay are solved for once more, all together, by conjugate gradients, as in ALPS (Meng et al. 2024, arXiv
2406.07831). Where the layer has a bias it takes up the mean of what is lost, and H is the covariance.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from compress.contracts import MatrixStatistics, SparseWeights
from compress.encoder.config.layer_shape import KEPT, OF

DAMPING = 0.01  # of the mean square of an input, added to all of them: as in the paper
PAIRS = list(combinations(range(OF), OF - KEPT))
ROUNDS, ENOUGH = 50, 1e-3  # of the last solution: steps at most, and the share of the gradient at zero that may be left


class Method:
    """Optimal brain surgeon on groups of four weights, then least squares over the kept weights. Reads text, no
    labels."""

    def __call__(self, seen: MatrixStatistics) -> SparseWeights:
        """Of the matrix (out, in)."""
        assert seen.inputs is not None
        second = seen.inputs if seen.mean is None else seen.inputs - torch.outer(seen.mean, seen.mean)
        hessian = second.clone()
        hessian.diagonal().add_(DAMPING * float(second.diagonal().mean()) or 1.0)
        start, mask = prune_by_obs(seen.weight, hessian)
        return SparseWeights(refit_weights(seen.weight, start, mask, hessian), centred=seen.mean is not None)


def prune_by_obs(weight: Tensor, hessian: Tensor) -> tuple[Tensor, Tensor]:
    """weight: (out, in).  hessian: (in, in), positive definite.  → the weights left of it, and their bool mask."""
    # Rows s.. of the factor U give the inverse of hessian[s:, s:], which is U[s:, s:]ᵀ U[s:, s:].
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor = torch.linalg.cholesky(inverse, upper=True)
    left, mask = weight.clone(), torch.ones_like(weight, dtype=torch.bool)
    places = torch.tensor(PAIRS)
    for start in range(0, weight.shape[1], OF):
        block = factor[start : start + OF]
        rows = block[:, start : start + OF].T @ block[:, start:]  # (4, in - start) of the inverse
        four = left[:, start : start + OF]
        solved = torch.stack([_solved(rows, four, pair) for pair in PAIRS], 1)  # (out, 6, 2)
        chosen = (solved * four[:, places]).sum(2).argmin(1)
        gone = places[chosen]
        taken = torch.zeros_like(four).scatter_(1, gone, solved[torch.arange(len(chosen)), chosen])
        left[:, start:].addmm_(taken, rows, alpha=-1)
        left[:, start : start + OF].scatter_(1, gone, 0)
        mask[:, start : start + OF].scatter_(1, gone, False)
    return left, mask


def _solved(rows: Tensor, four: Tensor, pair: tuple[int, ...]) -> Tensor:
    """(out, 2) w_P ([H⁻¹]_PP)⁻¹ of every row."""
    at = list(pair)
    return torch.linalg.solve(rows[at][:, at], four[:, at].T).T


def refit_weights(weight: Tensor, start: Tensor, mask: Tensor, hessian: Tensor, enough: float = ENOUGH) -> Tensor:
    """The weights (out, in), zero outside `mask`, of least (w - weight) hessian (w - weight)ᵀ, row by row.

    Conjugate gradients for all rows at once, from `start`, scaled by the hessian's diagonal. enough: share of the first
    gradient, that of no weights at all, at which they end.
    """
    now, scale = start.clone(), 1 / hessian.diagonal()
    rest = ((weight - now) @ hessian) * mask
    goal = enough * (weight @ hessian).norm(dim=1)
    way = scaled = rest * scale
    size = (rest * scaled).sum(1, keepdim=True)
    for _ in range(ROUNDS):
        if bool((rest.norm(dim=1) <= goal).all()):
            break
        seen = (way @ hessian) * mask
        step = size / (way * seen).sum(1, keepdim=True).clamp(min=torch.finfo(seen.dtype).tiny)
        now, rest = now + step * way, rest - step * seen
        scaled = rest * scale
        old, size = size, (rest * scaled).sum(1, keepdim=True)
        way = scaled + size / old.clamp(min=torch.finfo(seen.dtype).tiny) * way
    return now

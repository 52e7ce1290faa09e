"""How unevenly vectors fill their space (Ethayarajh, arXiv 1909.00512), and two ways to even them out.

Whitening gives every direction the same variance (Su et al., arXiv 2103.15316); removing the mean and the top
components takes away what most vectors share (Mu and Viswanath, arXiv 1702.01417). All in fp64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evaluation.representation.hsic import UndefinedError, finite

BINS = 20  # of the histogram of cosines, from −1 to 1
SHARES = (1, 3, 10)  # of how many top principal components the share of the variance is told


@dataclass(frozen=True)
class Anisotropy:
    """cosine: mean absolute cosine of two different rows, 0 to 1.  histogram: pairs in each of BINS equal parts of
    [−1, 1].  shares: number of top principal components → their share of the variance."""

    cosine: float
    histogram: tuple[int, ...]
    shares: dict[int, float]


def anisotropy(x: Tensor) -> Anisotropy:
    """Of rows (n, D). Raises UndefinedError for fewer than 2 rows, a row of zeros or rows that are all the same."""
    x = finite(x)
    if len(x) < 2:
        raise UndefinedError(f"pairs need at least 2 rows, found {len(x)}")
    lengths = x.norm(dim=1)
    centred = x - x.mean(0)
    variances = torch.linalg.svdvals(centred).square()
    if float(lengths.min()) == 0 or float(variances.sum()) <= 1e-20 * float(lengths.square().sum()):
        raise UndefinedError("the rows are zero or all the same")
    units = x / lengths[:, None]
    upper = torch.triu_indices(len(x), len(x), 1)
    cosines = (units @ units.T)[upper[0], upper[1]].clamp(-1, 1)
    counts = torch.histc(cosines, BINS, -1, 1)
    shares = {k: float(variances[:k].sum() / variances.sum()) for k in SHARES}
    return Anisotropy(float(cosines.abs().mean()), tuple(int(c) for c in counts), shares)


def whitened(x: Tensor, fitted_on: Tensor | None = None) -> Tensor:
    """(n, D) with mean 0 and the identity as covariance on `fitted_on` (x itself when not given); directions without
    variance are left out, so the width may fall."""
    x = finite(x)
    base = x if fitted_on is None else finite(fitted_on)
    mean = base.mean(0)
    _, singular, vectors = torch.linalg.svd(base - mean, full_matrices=False)
    kept = singular > 1e-9 * singular[0]
    scale = (len(base) - 1) ** 0.5 / singular[kept]
    return (x - mean) @ vectors[kept].T * scale


def without_top(x: Tensor, components: int, fitted_on: Tensor | None = None) -> Tensor:
    """(n, D) less its mean and its top principal components, as found on `fitted_on` (x itself when not given)."""
    x = finite(x)
    base = x if fitted_on is None else finite(fitted_on)
    mean = base.mean(0)
    top = torch.linalg.svd(base - mean, full_matrices=False)[2][:components]
    centred = x - mean
    return centred - centred @ top.T @ top

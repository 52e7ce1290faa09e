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


@dataclass(frozen=True)
class PostProcessing:
    """A linear map that evens rows out: (x − mean) · matrix. mean: (D,).  matrix: (D, K)."""

    mean: Tensor
    matrix: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(n, D) → (n, K)."""
        return (finite(x) - self.mean) @ self.matrix


def fit_whitening(base: Tensor, dimensions: int | None = None) -> PostProcessing:
    """What gives `base` (n, D) mean 0 and the identity as covariance; directions without variance are left out.

    dimensions: keep so many of the directions that vary most; None: all. Raises UndefinedError for fewer than 2 rows,
    rows that are all the same, and fewer directions with variance than are to be kept.
    """
    mean, singular, vectors = _directions(base)
    kept = len(singular)
    if dimensions is not None:
        if dimensions > kept:
            raise UndefinedError(f"{len(base)} rows vary in {kept} directions, not in {dimensions}")
        kept = dimensions
    return PostProcessing(mean, vectors[:kept].T * ((len(base) - 1) ** 0.5 / singular[:kept]))


def fit_removal(base: Tensor, components: int) -> PostProcessing:
    """What takes from rows the mean of `base` (n, D) and its top principal components. Raises UndefinedError for fewer
    than 2 rows, rows that are all the same, and as many components as there are directions or more."""
    mean, singular, vectors = _directions(base)
    if components >= (left := len(singular)):
        raise UndefinedError(f"{components} components are all that {len(base)} rows of {left} directions have")
    top = vectors[:components]
    return PostProcessing(mean, torch.eye(len(mean), dtype=mean.dtype, device=mean.device) - top.T @ top)


def whiten(x: Tensor, fitted_on: Tensor | None = None) -> Tensor:
    """(n, D) → (n, K), whitened as `fitted_on` asks for (x itself when not given)."""
    return fit_whitening(x if fitted_on is None else fitted_on)(x)


def remove_top(x: Tensor, components: int, fitted_on: Tensor | None = None) -> Tensor:
    """(n, D) less its mean and its top principal components, as found on `fitted_on` (x itself when not given)."""
    return fit_removal(x if fitted_on is None else fitted_on, components)(x)


def _directions(base: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, singular values, directions as rows) of (n, D), fp64, of the directions with variance.

    What rounding leaves is no variance: after a layer norm one direction has nothing else, and whitening would give it
    the weight of the others.
    """
    precision = 0.0 if base.dtype == torch.float64 else torch.finfo(torch.float32).eps
    base = finite(base)
    if len(base) < 2:
        raise UndefinedError(f"a spread needs at least 2 rows, found {len(base)}")
    mean = base.mean(0)
    _, singular, vectors = torch.linalg.svd(base - mean, full_matrices=False)
    if not float(singular[0]) > 1e-10 * float(base.norm()):
        raise UndefinedError("the rows are all the same")
    varied = singular > max(1e-9 * float(singular[0]), precision * float(base.norm()))
    kept = max(1, int(varied.sum()))
    return mean, singular[:kept], vectors[:kept]

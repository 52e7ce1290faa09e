"""The Hilbert-Schmidt independence criterion of Gram matrices, and the Gram matrices of representations.

HSIC is Song et al.'s unbiased estimate (2012), which is 0 on average for independent data, or the biased one, which is
not: linear CKA of independent Gaussians is then √(pq/((n+p)(n+q))). Everything is computed in fp64.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_ROWS = 4


class UndefinedError(ValueError):
    """There is no value here; the message says why."""


class NonFiniteError(UndefinedError):
    """A representation holds a value that is not finite. layer: its place among those given, None for one alone."""

    def __init__(self, layer: int | None = None) -> None:
        self.layer = layer
        super().__init__("a representation is not finite" if layer is None else f"representation {layer} is not finite")


def hsic(k: Tensor, l: Tensor, *, debiased: bool = True) -> Tensor:  # noqa: E741 - the names of the literature
    """HSIC of two Gram matrices (.., n, n) → (..), fp64. The debiased one does not read their diagonals.

    Raises UndefinedError for fewer than 4 rows.
    """
    n = _enough(k.shape[-1])
    if not debiased:
        return (_centred(k) * l.double()).sum((-2, -1)) / (n - 1) ** 2
    k, l = hollow(k), hollow(l)  # noqa: E741
    rows_k, rows_l = k.sum(-1), l.sum(-1)
    cross = (k * l).sum((-2, -1))
    means = rows_k.sum(-1) * rows_l.sum(-1) / ((n - 1) * (n - 2))
    return (cross + means - 2 / (n - 2) * (rows_k * rows_l).sum(-1)) / (n * (n - 3))


def u_centred(gram: Tensor) -> Tensor:
    """Székely and Rizzo's U-centring of (n, n): ⟨K̃, L̃⟩/(n(n−3)) is then the unbiased HSIC."""
    n = _enough(gram.shape[0])
    gram = hollow(gram)
    rows = gram.sum(0) / (n - 2)
    return hollow(gram - rows[:, None] - rows[None, :] + gram.sum() / ((n - 1) * (n - 2)))


def hollow(gram: Tensor) -> Tensor:
    """(.., n, n) in fp64 with a diagonal of zeros."""
    gram = gram.double()
    return gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))


def linear_gram(x: Tensor) -> Tensor:
    """(n, p) rows → (n, n) inner products of what differs from their mean."""
    x = x.double()
    x = x - x.mean(0)
    return x @ x.T


def rbf_gram(x: Tensor, bandwidth: float) -> Tensor:
    """(n, p) rows → (n, n) exp(−d²/(2σ²)), σ = bandwidth."""
    distances = torch.cdist(x.double(), x.double())
    return torch.exp(-distances.square() / (2 * bandwidth**2))


def median_distance(x: Tensor) -> float:
    """Median distance between two of the rows (n, p), what bandwidths are multiples of.

    Raises UndefinedError for fewer than 4 rows, and where it is a millionth of the rows' length or less: rounding.
    """
    x = x.double()
    found = float(torch.pdist(x - x.mean(0)).median()) if _enough(len(x)) else 0.0
    if found <= 1e-6 * float(x.norm()) / len(x) ** 0.5:
        raise UndefinedError("CKA of a constant representation is 0/0")
    return found


def finite(values: Tensor, layer: int | None = None) -> Tensor:
    """In fp64, without gradient. Raises NonFiniteError, which names the layer."""
    values = values.detach()
    if not values.isfinite().all():
        raise NonFiniteError(layer)
    return values.double()


def _centred(gram: Tensor) -> Tensor:
    gram = gram.double()
    rows = gram.mean(-1, keepdim=True)
    return gram - rows - rows.transpose(-2, -1) + gram.mean((-2, -1), keepdim=True)


def _enough(rows: int) -> int:
    if rows < LEAST_ROWS:
        raise UndefinedError(f"CKA needs at least {LEAST_ROWS} rows, found {rows}")
    return rows

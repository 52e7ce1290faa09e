"""Centred kernel alignment (Kornblith et al., arXiv 1905.00414), unbiased and in one pass.

HSIC is Song et al.'s unbiased estimate (2012), which is 0 on average for independent data, where the biased one is
√(pq/((n+p)(n+q))). All sums are kept in fp64. Two ways, both with memory that does not grow with the examples:

`LinearCKA`   two representations, exact: the value of all rows at once, from sums over batches, in O(p·q) memory.
`LayerCKA`    every layer of one model against every layer of another (or of itself): the three HSIC are summed over
              minibatches and then divided (Nguyen et al., arXiv 2010.15327), in O(n²) per minibatch of n rows.

Where a representation is constant CKA is 0/0: `undefined`, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

LEAST_ROWS = 4
MINIBATCH = 256  # rows whose Gram matrices are made at once


class UndefinedError(ValueError):
    """CKA has no value here; the message says why."""


def hsic(k: Tensor, l: Tensor) -> Tensor:  # noqa: E741 - the names of the literature
    """Unbiased HSIC of two Gram matrices (.., n, n), fp64, n ≥ 4 → (..). Their diagonals are not read."""
    n = k.shape[-1]
    if n < LEAST_ROWS:
        raise UndefinedError(f"CKA needs at least {LEAST_ROWS} rows, found {n}")
    k, l = _hollow(k), _hollow(l)  # noqa: E741
    rows_k, rows_l = k.sum(-1), l.sum(-1)
    cross = (k * l).sum((-2, -1))
    means = rows_k.sum(-1) * rows_l.sum(-1) / ((n - 1) * (n - 2))
    return (cross + means - 2 / (n - 2) * (rows_k * rows_l).sum(-1)) / (n * (n - 3))


def _hollow(gram: Tensor) -> Tensor:
    gram = gram.double()
    return gram - torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))


class LinearCKA:
    """Linear CKA of X (n, p) and Y (n, q) over all rows given in batches: the exact value, biased or not.

    Rows are shifted by the mean of the first batch (CKA does not change, rounding does).
    """

    def __init__(self) -> None:
        self.rows = 0
        self._shift: tuple[Tensor, Tensor] | None = None
        self._sums: dict[str, Tensor] = {}

    def update(self, x: Tensor, y: Tensor) -> None:
        """Add rows: x (n, p), y (n, q). Raises UndefinedError for a value that is not finite."""
        x, y = _finite(x), _finite(y)
        if self._shift is None:
            self._shift = x.mean(0), y.mean(0)
        x, y = x - self._shift[0], y - self._shift[1]
        k, l = x.square().sum(1), y.square().sum(1)  # noqa: E741
        parts = {
            "xx": x.T @ x, "yy": y.T @ y, "xy": x.T @ y, "x": x.sum(0), "y": y.sum(0),
            "k": k.sum(), "l": l.sum(), "kk": (k * k).sum(), "ll": (l * l).sum(), "kl": (k * l).sum(),
            "kx": k @ x, "lx": l @ x, "ky": k @ y, "ly": l @ y,
        }  # fmt: skip
        for name, value in parts.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self.rows += x.shape[0]

    def value(self, *, debiased: bool = True) -> float:
        """CKA of all rows so far. Raises UndefinedError for fewer than 4 rows or a constant representation."""
        if self.rows < LEAST_ROWS:
            raise UndefinedError(f"CKA needs at least {LEAST_ROWS} rows, found {self.rows}")
        estimate = self._unbiased if debiased else self._biased
        s = self._sums
        cross = estimate(s["xy"], s["x"], s["y"], s["k"], s["l"], s["kl"], s["lx"], s["ky"])
        own = estimate(s["xx"], s["x"], s["x"], s["k"], s["k"], s["kk"], s["kx"], s["kx"])
        other = estimate(s["yy"], s["y"], s["y"], s["l"], s["l"], s["ll"], s["ly"], s["ly"])
        scale = self.rows * (float(s["k"]) + float(s["l"]) + 1e-300)
        if min(own, other) <= 1e-14 * scale:
            raise UndefinedError("CKA of a constant representation is 0/0")
        return cross / (own * other) ** 0.5

    def _unbiased(
        self, c: Tensor, sx: Tensor, sy: Tensor, k: Tensor, m: Tensor, km: Tensor, mx: Tensor, ky: Tensor
    ) -> float:
        n = self.rows
        trace = c.square().sum() - km
        ones = (sx @ sx - k) * (sy @ sy - m) / ((n - 1) * (n - 2))
        mixed = sx @ c @ sy - sx @ mx - sy @ ky + km
        return float((trace + ones - 2 / (n - 2) * mixed) / (n * (n - 3)))

    def _biased(self, c: Tensor, sx: Tensor, sy: Tensor, *_: Tensor) -> float:
        return float((c - torch.outer(sx, sy) / self.rows).square().sum() / (self.rows - 1) ** 2)


def _finite(values: Tensor) -> Tensor:
    values = values.detach().double()
    if not values.isfinite().all():
        raise UndefinedError("a representation is not finite")
    return values


class LayerCKA:
    """Debiased linear CKA of every layer of one model with every layer of another, in one pass.

    Rows wait until MINIBATCH of them are there, so the value does not depend on how they were batched.
    """

    def __init__(self, minibatch: int = MINIBATCH) -> None:
        if minibatch < LEAST_ROWS:
            raise ValueError(f"a minibatch needs at least {LEAST_ROWS} rows, found {minibatch}")
        self.minibatch, self.rows = minibatch, 0
        self._waiting: list[list[Tensor]] = []
        self._split = 0
        self._hsic: Tensor | None = None

    def update(self, xs: Sequence[Tensor], ys: Sequence[Tensor] | None = None) -> None:
        """Add rows: one (n, width) a layer, of the first model and of the second (None: the first again)."""
        layers = [*xs, *(ys or ())]
        self._split = len(xs)
        if not self._waiting:
            self._waiting = [[] for _ in layers]
        for waiting, layer in zip(self._waiting, layers, strict=True):
            waiting.append(layer.detach())
        while sum(part.shape[0] for part in self._waiting[0]) >= self.minibatch:
            joined = [torch.cat(parts) for parts in self._waiting]
            self._take([layer[: self.minibatch] for layer in joined])
            self._waiting = [[layer[self.minibatch :]] for layer in joined]

    def matrix(self) -> np.ma.MaskedArray:
        """(layers of the first, layers of the second) CKA; masked where a representation is constant.

        Raises UndefinedError when there were fewer than 4 rows in all.
        """
        total = self._hsic
        left = sum(part.shape[0] for part in self._waiting[0]) if self._waiting else 0
        if total is None or left >= max(LEAST_ROWS, self.minibatch // 2):
            # A rest that is not small counts too; a small one would only add noise.
            total = self._sum([torch.cat(parts) for parts in self._waiting], total) if self._waiting else total
        if total is None:
            raise UndefinedError(f"CKA needs at least {LEAST_ROWS} rows, found none")
        own = total.diagonal()
        scale = own.abs().max()
        bad = (own <= 1e-14 * scale) | (own <= 0)
        safe = torch.where(bad, torch.ones_like(own), own).sqrt()
        values = (total / safe[:, None] / safe[None, :]).numpy()
        mask = (bad[:, None] | bad[None, :]).numpy()
        second = slice(self._split, None) if self._split < len(own) else slice(None)
        return np.ma.MaskedArray(values[: self._split, second], mask[: self._split, second])

    def _take(self, layers: Sequence[Tensor]) -> None:
        self._hsic = self._sum(layers, self._hsic)
        self.rows += layers[0].shape[0]

    def _sum(self, layers: Sequence[Tensor], total: Tensor | None) -> Tensor:
        grams = []
        for layer in layers:
            x = _finite(layer)
            x = x - x.mean(0)
            grams.append((x @ x.T).cpu())
        n = grams[0].shape[0]
        if n < LEAST_ROWS:
            raise UndefinedError(f"CKA needs at least {LEAST_ROWS} rows, found {n}")
        # Centred in the sense of the unbiased estimate, HSIC is a plain inner product of what is off the diagonal.
        flat = torch.stack([_u_centred(gram).flatten() for gram in grams])
        found = flat @ flat.T / (n * (n - 3))
        return found if total is None else total + found


def _u_centred(gram: Tensor) -> Tensor:
    """Székely and Rizzo's U-centring: ⟨K̃, L̃⟩/(n(n−3)) is then the unbiased HSIC."""
    n = gram.shape[0]
    gram = _hollow(gram)
    rows = gram.sum(0) / (n - 2)
    return _hollow(gram - rows[:, None] - rows[None, :] + gram.sum() / ((n - 1) * (n - 2)))

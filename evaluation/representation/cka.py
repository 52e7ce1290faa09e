"""Centred kernel alignment (Kornblith et al., arXiv 1905.00414), unbiased and in one pass.

The HSIC in it is Song et al.'s (see `hsic`). All sums are kept in fp64. Two ways, both with memory that does not grow
with the examples:

`LinearCKA`   two representations, exact: the value of all rows at once, from sums over batches, in O(p·q) memory.
`LayerCKA`    every layer of one model against every layer of another (or of itself): the three HSIC are summed over
              minibatches and then divided (Nguyen et al., arXiv 2010.15327), in O(n²) per minibatch of n rows; with a
              bootstrap interval of every entry.

Where a representation is constant CKA is 0/0: `undefined`, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from evaluation.representation.hsic import (
    LEAST_ROWS,
    UndefinedError,
    finite,
    linear_gram,
    median_distance,
    rbf_gram,
    u_centred,
)

MINIBATCH = 256  # rows whose Gram matrices are made at once
BLOCKS = 64  # at least as many stay apart for the bootstrap once there are so many minibatches, at most twice as many
LEAST_BLOCKS = 8  # fewer say nothing about how a figure varies
CONSTANT = 1e-24
"""HSIC of a representation with itself over its mean squared length squared, below which it counts as constant: rows
that differ by a millionth of their length or less, a few times the rounding of fp32."""


class LinearCKA:
    """Linear CKA of X (n, p) and Y (n, q) over all rows given in batches: the exact value, biased or not.

    Rows are shifted by the mean of the first batch (CKA does not change, rounding does).
    """

    def __init__(self) -> None:
        self.rows = 0
        self._shift: tuple[Tensor, Tensor] | None = None
        self._sums: dict[str, Tensor] = {}
        self._lengths = (0.0, 0.0)  # squared, summed over rows, before the shift

    def update(self, x: Tensor, y: Tensor) -> None:
        """Add rows: x (n, p), y (n, q). Raises NonFiniteError for a value that is not finite."""
        x, y = finite(x), finite(y)
        if self._shift is None:
            self._shift = x.mean(0), y.mean(0)
        self._lengths = self._lengths[0] + float(x.square().sum()), self._lengths[1] + float(y.square().sum())
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
        for figure, length in zip((own, other), self._lengths, strict=True):
            if figure <= CONSTANT * (length / self.rows) ** 2:
                raise UndefinedError("CKA of a constant representation is 0/0")
        return cross / own**0.5 / other**0.5

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


class LayerCKA:
    """Debiased CKA of every layer of one model with every layer of another, in one pass.

    Rows wait until `minibatch` of them are there, so the value does not depend on how they were batched.
    kernel: "linear", or "rbf" of `bandwidth` times each layer's median distance between rows.  without: leave out so
    many dimensions of each layer, those that vary most: one that all layers share hides what else they compute.
    Median distances and variances are those of the first minibatch.
    """

    def __init__(
        self,
        minibatch: int = MINIBATCH,
        *,
        kernel: Literal["linear", "rbf"] = "linear",
        bandwidth: float = 1.0,
        without: int = 0,
    ) -> None:
        if minibatch < LEAST_ROWS:
            raise ValueError(f"a minibatch needs at least {LEAST_ROWS} rows, found {minibatch}")
        if not bandwidth > 0:
            raise ValueError(f"a bandwidth is above 0, found {bandwidth}")
        self.minibatch, self.rows = minibatch, 0
        self._kernel, self._bandwidth, self._without = kernel, bandwidth, without
        self._waiting: list[list[Tensor]] = []
        self._split = 0
        self._kept: list[Tensor] | None = None  # dimensions of each layer
        self._scales: list[float | None] | None = None  # bandwidth of each layer, None where it is constant
        self._blocks: list[Tensor] = []  # HSIC summed over `_size` minibatches each, the last over up to so many
        self._size, self._last = 1, 0

    def update(self, xs: Sequence[Tensor], ys: Sequence[Tensor] | None = None) -> None:
        """Add rows: one (n, width) a layer, of the first model and of the second (None: the first again).

        Raises NonFiniteError, which names the layer, the second model's counted after the first's, and ValueError when
        the layers are not of equally many rows.
        """
        layers = [*xs, *(ys or ())]
        self._split = len(xs)
        if not self._waiting:
            self._waiting = [[] for _ in layers]
        if len({layer.shape[0] for layer in layers}) > 1:
            raise ValueError(f"layers of {[layer.shape[0] for layer in layers]} rows are not of the same input")
        for waiting, layer in zip(self._waiting, layers, strict=True):
            waiting.append(layer.detach())
        full = sum(part.shape[0] for part in self._waiting[0]) // self.minibatch * self.minibatch
        if full:
            joined = [torch.cat(parts) for parts in self._waiting]
            for start in range(0, full, self.minibatch):
                self._take([layer[start : start + self.minibatch] for layer in joined])
            self._waiting = [[layer[full:].clone()] for layer in joined]  # a view would hold all of the batch

    def matrix(self) -> np.ma.MaskedArray:
        """(layers of the first, layers of the second) CKA; masked where a representation is constant.

        Raises UndefinedError when there were fewer than 4 rows in all.
        """
        total = torch.stack(self._all_blocks()).sum(0)
        values, bad = _ratios(total)
        return np.ma.MaskedArray(values.numpy()[self._places], bad.numpy()[self._places])

    def interval(
        self, *, resamples: int = 1000, seed: int = 0, level: float = 0.95
    ) -> tuple[np.ma.MaskedArray, np.ma.MaskedArray]:
        """(low, high) of every entry of `matrix`: percentiles over resampled blocks of minibatches (rows of one text
        are alike, blocks of neighbouring rows hardly). Raises UndefinedError for too few minibatches."""
        blocks = torch.stack(self._all_blocks())
        if len(blocks) < LEAST_BLOCKS:
            need = LEAST_BLOCKS * self.minibatch
            raise UndefinedError(f"an interval of CKA needs {need:,} rows in minibatches of {self.minibatch}")
        draws = np.random.default_rng(seed).multinomial(len(blocks), [1 / len(blocks)] * len(blocks), size=resamples)
        totals = torch.einsum("rb,bij->rij", torch.from_numpy(draws).double(), blocks)
        values, bad = _ratios(totals)
        kept = np.where(bad.numpy(), np.nan, values.numpy())
        _, never = _ratios(blocks.sum(0))
        whole = np.where(never.numpy(), 0.0, kept)  # nothing to say there, and numpy would say that
        ends = np.nanquantile(whole, [(1 - level) / 2, (1 + level) / 2], axis=0)
        low, high = (np.ma.MaskedArray(end[self._places], never.numpy()[self._places]) for end in ends)
        here = self.matrix()
        return np.ma.minimum(low, here), np.ma.maximum(high, here)

    @property
    def _places(self) -> tuple[slice, slice]:
        """Where first against second model stands in the matrix of all layers."""
        total = len(self._waiting)
        return slice(None, self._split), slice(self._split, None) if self._split < total else slice(None)

    def _all_blocks(self) -> list[Tensor]:
        """What was summed so far, and a rest that is not small (a small one would only add noise)."""
        left = sum(part.shape[0] for part in self._waiting[0]) if self._waiting else 0
        if left >= LEAST_ROWS and (not self._blocks or left >= self.minibatch // 2):
            return [*self._blocks, self._sums([torch.cat(parts) for parts in self._waiting])]
        if not self._blocks:
            raise UndefinedError(f"CKA needs at least {LEAST_ROWS} rows, found {left or 'none'}")
        return self._blocks

    def _take(self, layers: Sequence[Tensor]) -> None:
        found = self._sums(layers)
        if self._blocks and self._last < self._size:
            self._blocks[-1] = self._blocks[-1] + found
            self._last += 1
        else:
            self._blocks.append(found)
            self._last = 1
        if len(self._blocks) == 2 * BLOCKS and self._last == self._size:
            self._blocks = [a + b for a, b in zip(self._blocks[::2], self._blocks[1::2], strict=True)]
            self._size, self._last = 2 * self._size, 2 * self._size
        self.rows += layers[0].shape[0]

    def _sums(self, layers: Sequence[Tensor]) -> Tensor:
        """Unbiased HSIC of every layer with every layer on these rows."""
        xs = [finite(layer, number) for number, layer in enumerate(layers)]
        if self._kept is None and self._without:
            self._kept = [_quiet_dimensions(x, self._without) for x in xs]
        if self._kept is not None:
            xs = [x[:, kept] for x, kept in zip(xs, self._kept, strict=True)]
        grams = [self._gram(number, x, xs) for number, x in enumerate(xs)]
        # Centred in the sense of the unbiased estimate, HSIC is a plain inner product of what is off the diagonal.
        flat = torch.stack([u_centred(gram).flatten() for gram in grams])
        n = len(xs[0])
        found = flat @ flat.T / (n * (n - 3))
        # Entries of a linear Gram matrix are of the size of the rows' squared length, those of an RBF one of 1.
        lengths = [x.square().sum() / n if self._kernel == "linear" else torch.ones(()) for x in xs]
        constant = found.diagonal() <= CONSTANT * torch.stack(lengths).cpu().square()
        found[constant] = 0
        found[:, constant] = 0
        return found

    def _gram(self, number: int, x: Tensor, xs: Sequence[Tensor]) -> Tensor:
        if self._kernel == "linear":
            return linear_gram(x).cpu()
        if self._scales is None:
            self._scales = [_scale(layer) for layer in xs]
        scale = self._scales[number]
        return torch.ones(len(x), len(x)) if scale is None else rbf_gram(x, self._bandwidth * scale).cpu()


def _ratios(total: Tensor) -> tuple[Tensor, Tensor]:
    """(.., n, n) sums of HSIC → CKA, and where it is undefined."""
    own = total.diagonal(dim1=-2, dim2=-1)
    bad = own <= 0
    safe = torch.where(bad, torch.ones_like(own), own).sqrt()
    return total / safe[..., :, None] / safe[..., None, :], bad[..., :, None] | bad[..., None, :]


def _quiet_dimensions(x: Tensor, without: int) -> Tensor:
    if without >= x.shape[1]:
        raise UndefinedError(f"{without} of {x.shape[1]} dimensions cannot be left out")
    return x.var(0).argsort()[: x.shape[1] - without]


def _scale(x: Tensor) -> float | None:
    try:
        return median_distance(x)
    except UndefinedError:
        return None

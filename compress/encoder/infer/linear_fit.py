"""A linear layer fitted by least squares to what it should give on real input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compress.encoder.infer.second_moments import compute_second_moments
from compress.encoder.infer.statistics import ridge


class LinearFit:
    """Normal equations of W x + b for targets y; b is one vector, or one for each of several layers.

    module: a linear layer of n inputs and m outputs.  layers: that have a bias of their own.
    """

    def __init__(self, module: Any, layers: int = 1) -> None:
        self.module, self.biases = module, 0 if module.bias is None else layers
        size = module.in_features + self.biases
        self.left = torch.zeros(size, size, dtype=torch.float64)
        self.right = torch.zeros(module.out_features, size, dtype=torch.float64)
        self.tokens = 0

    def add(self, x: Tensor, y: Tensor, layer: int = 0) -> None:
        """x (T, n), y (T, m) of the layer with this bias."""
        x, y, n = x.float(), y.float(), self.module.in_features
        second = compute_second_moments(x).double().cpu()
        self.left[:n, :n] += second[:n, :n]
        self.right[:, :n] += (y.T @ x).double().cpu()
        if self.biases:
            own = n + min(layer, self.biases - 1)
            self.left[own, :n] += second[n, :n]
            self.left[:n, own] += second[:n, n]
            self.left[own, own] += second[n, n]
            self.right[:, own] += y.sum(0).double().cpu()
        self.tokens += len(x)

    def solve(self, biases: Sequence[Tensor]) -> None:
        """Write weight and biases, without a gradient; where the text does not say, what was there stays."""
        weight = self.module.weight
        before = torch.cat([weight.double().cpu(), *(b.double().cpu()[:, None] for b in biases)], 1)
        found = ridge(self.left, self.right, before, self.tokens)
        weight.copy_(found[:, : weight.shape[1]])
        for bias, column in zip(biases, found[:, weight.shape[1] :].T, strict=True):
            bias.copy_(column)

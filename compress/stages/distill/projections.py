"""Projections of hidden states that start from least squares on real input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from compress.contracts import Batch
from compress.encoder.infer.second_moments import compute_second_moments
from compress.encoder.infer.statistics import ridge
from compress.training.module import StageModule

TOKENS = 16384
"""Of real input: 40 for each channel of a student of width 384."""


def have_projections(objectives: Iterable[nn.Module]) -> bool:
    """Whether any of them, which are bound, compares states of two widths."""
    return any(map(_has_projections, objectives))


def fit_projections(module: StageModule, batches: Iterable[Batch]) -> int:
    """Replace the projections of the module's objectives, which start as a random change of basis, by those of least
    squares from the student's states to the teacher's. → how many were fitted.

    A student that is cut from its teacher already holds most of what the states say, in a basis of its own. With a
    random projection training first has to turn the one into the other. Projections of layers that are not known before
    training stay as they are.
    """
    asked: list[Any] = list(filter(_has_projections, module.objectives.values()))
    sums: dict[nn.Linear, _Sums] = {}
    mode, seen = module.student.training, 0
    module.student.eval()
    with torch.no_grad():
        for batch in batches:
            outputs = module.run_both(batch)
            for objective in asked:
                for layer, x, y in objective.list_projected(*outputs):
                    linear = objective.maps.maps[objective.maps.place(layer)]
                    sums.setdefault(linear, _Sums(linear)).add(x, y)
            seen += batch.tokens
            if seen >= TOKENS:
                break
    module.student.train(mode)
    for found in sums.values():
        found.fit()
    return len(sums)


def _has_projections(objective: Any) -> bool:
    return hasattr(objective, "list_projected") and len(objective.maps) > 0


class _Sums:
    """What least squares need of states x (N, d) and y (N, D), to fit a linear layer (d → D)."""

    def __init__(self, linear: nn.Linear) -> None:
        self.linear = linear
        size = linear.in_features + 1
        self.inputs = torch.zeros(size, size, dtype=torch.float64)
        self.products = torch.zeros(linear.out_features, size, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor) -> None:
        self.inputs += compute_second_moments(x).double().cpu()
        self.products += torch.cat([y.T @ x, y.sum(0)[:, None]], 1).double().cpu()

    def fit(self) -> None:
        """Where the states say nothing, the layer stays as it is."""
        linear, tokens = self.linear, int(self.inputs[-1, -1])
        if not tokens:
            return
        now = torch.cat([linear.weight, linear.bias[:, None]], 1).detach().double().cpu()
        found = ridge(self.inputs, self.products, now, tokens)
        with torch.no_grad():
            linear.weight.copy_(found[:, :-1])
            linear.bias.copy_(found[:, -1])

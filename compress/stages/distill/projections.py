"""Projections of hidden states that start from least squares on real input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from compress.contracts import Batch
from compress.encoder.infer.linear_fit import LinearFit
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
    fits: dict[nn.Linear, LinearFit] = {}
    mode, seen = module.student.training, 0
    module.student.eval()
    with torch.no_grad():
        for batch in batches:
            outputs = module.run_both(batch)
            for objective in asked:
                for layer, x, y in objective.list_projected(*outputs):
                    linear = objective.maps.find_map(layer)
                    fits.setdefault(linear, LinearFit(linear)).add(x, y)
            seen += batch.tokens
            if seen >= TOKENS or not fits:  # or no layer is known
                break
        for linear, fit in fits.items():
            fit.solve([linear.bias])
    module.student.train(mode)
    return len(fits)


def _has_projections(objective: Any) -> bool:
    return hasattr(objective, "list_projected") and len(objective.maps) > 0

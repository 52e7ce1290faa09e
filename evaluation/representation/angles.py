"""How far each layer's output turns away from every other's: cosine and angle, token by token.

Block influence of layer l is 1 − mean cos(x_l, x_{l+1}) (Men et al., arXiv 2403.03853); the angular distance over n
layers is the mean of arccos(cos(x_l, x_{l+n}))/π (Gromov et al., arXiv 2403.17887).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from evaluation.representation.hsic import UndefinedError, finite

CHUNK = 512  # rows that are in fp64 at once


class LayerAngles:
    """Mean cosine and mean angle of every pair of layers, over all rows given in batches."""

    def __init__(self) -> None:
        self.rows = 0
        self._cosines: Tensor | None = None
        self._angles: Tensor | None = None

    def update(self, layers: Sequence[Tensor]) -> None:
        """Add rows: one (n, D) a layer. Raises NonFiniteError, which names the layer."""
        for start in range(0, layers[0].shape[0], CHUNK):
            parts = [finite(layer[start : start + CHUNK], number) for number, layer in enumerate(layers)]
            units = torch.nn.functional.normalize(torch.stack(parts), dim=-1)
            cosines = torch.einsum("and,bnd->abn", units, units).clamp(-1, 1)
            angles = torch.arccos(cosines) / torch.pi
            self._cosines = cosines.sum(-1).cpu() + (0 if self._cosines is None else self._cosines)
            self._angles = angles.sum(-1).cpu() + (0 if self._angles is None else self._angles)
            self.rows += units.shape[1]

    def cosines(self) -> np.ndarray:
        """(layers, layers) mean cosine. Raises UndefinedError without rows."""
        return self._mean(self._cosines)

    def angles(self) -> np.ndarray:
        """(layers, layers) mean angle as a share of π, from 0 to 1. Raises UndefinedError without rows."""
        return self._mean(self._angles)

    def _mean(self, total: Tensor | None) -> np.ndarray:
        if total is None or not self.rows:
            raise UndefinedError("angles of no rows")
        return (total / self.rows).numpy()

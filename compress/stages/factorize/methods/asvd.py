"""Activation-aware SVD (Yuan et al. 2023, arXiv 2312.05821): large inputs count more, α = 0.5.

The size of an input is the root of its mean square over real tokens, where the paper takes the mean of its absolute
value.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from compress.contracts import Factors, MatrixStatistics

ALPHA = 0.5


class Method:
    """SVD of W diag(s), where s is the magnitude of each input to the power α; then divide by s."""

    reads: ClassVar[str] = "inputs"

    def __call__(self, seen: MatrixStatistics) -> Factors:
        """Of the matrix (out, in), for every rank."""
        assert seen.inputs is not None
        square = seen.inputs.diagonal()
        scale = square.clamp(min=float(square.max()) * 1e-8 or 1.0).pow(ALPHA / 2)
        u, s, v = torch.linalg.svd(seen.weight * scale, full_matrices=False)
        root = s.sqrt()
        return Factors(u * root, root[:, None] * v / scale, s.square())

"""Fisher-weighted SVD (Hsu et al. 2022, arXiv 2207.00112): rows to which the loss is sensitive count more.

A row is an input in the paper's notation (y = x W), which is a column here.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from compress.contracts import Factors, MatrixStatistics


class Method:
    """SVD of W diag(w), where w² is the summed Fisher information of the weights of an input; then divide by w."""

    reads: ClassVar[str] = "gradients"

    def __call__(self, seen: MatrixStatistics) -> Factors:
        """Of the matrix (out, in), for every rank; values are in the loss's units, not in the output's."""
        assert seen.fisher is not None
        importance = seen.fisher.sum(0)
        # An input that no gradient reached still counts for something: its weights are not free to be anything.
        weight = importance.clamp(min=float(importance.max()) * 1e-6 or 1.0).sqrt()
        u, s, v = torch.linalg.svd(seen.weight * weight, full_matrices=False)
        root = s.sqrt()
        return Factors(u * root, root[:, None] * v / weight, s.square())

"""Truncated singular value decomposition: the nearest matrix of a given rank, all entries with equal weight (Eckart and
Young 1936)."""

from __future__ import annotations

from typing import ClassVar

import torch

from compress.contracts import Factors, MatrixStatistics


class Method:
    """W ≈ (U √S)(√S Vᵀ)."""

    reads: ClassVar[str] = "nothing"

    def __call__(self, seen: MatrixStatistics) -> Factors:
        """Of the matrix (out, in), for every rank."""
        u, s, v = torch.linalg.svd(seen.weight, full_matrices=False)
        root = s.sqrt()
        return Factors(u * root, root[:, None] * v, s.square())

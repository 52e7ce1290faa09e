"""Remove the two smallest of every four weights (Mishra et al. 2021, arXiv 2104.08378); the others do not change."""

from __future__ import annotations

from compress.contracts import MatrixStatistics, SparseWeights
from compress.encoder.modules.masks import mask_largest


class Method:
    """Score: |w|. Reads no text."""

    def __call__(self, seen: MatrixStatistics) -> SparseWeights:
        """Of the matrix (out, in)."""
        return SparseWeights(seen.weight * mask_largest(seen.weight.abs()))

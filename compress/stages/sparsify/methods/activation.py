"""Wanda (Sun et al. 2023, arXiv 2306.11695): weights with large inputs count more; kept weights do not change."""

from __future__ import annotations

from compress.contracts import MatrixStatistics, SparseWeights
from compress.encoder.modules.masks import mask_largest


class Method:
    """Score: |w| times the root mean square of its input."""

    def __call__(self, seen: MatrixStatistics) -> SparseWeights:
        """Of the matrix (out, in)."""
        assert seen.inputs is not None
        size = seen.inputs.diagonal().clamp(min=0).sqrt()
        return SparseWeights(seen.weight * mask_largest(seen.weight.abs() * size))

"""Low-rank factors that change the outputs of the matrix least: minimize E|(W - W') x|² at rank r, in closed form.

What SVD-LLM reaches by whitening the inputs (Wang et al. 2024, arXiv 2403.07378) is the projection of the outputs on
their leading principal directions: with U those of W C Wᵀ, C the inputs' second moments, W' = U Uᵀ W. No inverse is
needed. Where the layer has a bias it takes up the mean of what is lost, and C is the covariance.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from compress.contracts import Factors, MatrixStatistics


class Method:
    """W ≈ U (Uᵀ W), and b + (W - W') mean(x)."""

    reads: ClassVar[str] = "inputs"

    def __call__(self, seen: MatrixStatistics) -> Factors:
        """Of the matrix (out, in), for every rank. values: mean square output error that each direction takes away."""
        assert seen.inputs is not None
        second = seen.inputs
        if seen.mean is not None:
            second = second - torch.outer(seen.mean, seen.mean)
        values, vectors = torch.linalg.eigh(second)
        root = vectors * values.clamp(min=0).sqrt()
        u, s, _ = torch.linalg.svd(seen.weight @ root, full_matrices=False)
        return Factors(u, u.T @ seen.weight, s.square(), centred=seen.mean is not None)

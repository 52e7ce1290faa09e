"""Principal directions of vectors."""

from __future__ import annotations

import torch
from torch import Tensor


def find_directions(vectors: Tensor, dimensions: int) -> Tensor:
    """(N, D) vectors → (D, dimensions) fp32, orthonormal, the largest mean square first.

    Vectors count by their direction, and are not centred: similarities are cosines, which a shift would change."""
    units = torch.nn.functional.normalize(vectors.double(), dim=1)
    _, found = torch.linalg.eigh(units.T @ units)
    kept = found.flip(1)[:, :dimensions]
    largest = kept.gather(0, kept.abs().argmax(0, keepdim=True))
    return (kept * largest.sign()).float()

"""Fixed tensors for the objectives, and a batch that has everything."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from compress.contracts import Batch, VocabularyOutput


def ar(shape: tuple[int, ...], a: float = 1.0, b: float = 0.0) -> Tensor:
    """a·sin(1.7·n + b), n the row-major index; fp64. The frozen numbers were made with these."""
    n = torch.arange(math.prod(shape), dtype=torch.float64)
    return (a * torch.sin(1.7 * n + b)).reshape(shape)


def batch_of(lengths: list[int], **fields: Any) -> Batch:
    """A packed batch of these lengths; ids count up."""
    total = sum(lengths)
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return Batch(
        input_ids=torch.arange(total),
        segment_ids=torch.zeros(total, dtype=torch.int64),
        position_ids=torch.cat([torch.arange(n) for n in lengths]) if lengths else torch.zeros(0, dtype=torch.int64),
        cu_seqlens=ends,
        max_length=max(lengths, default=0),
        row_ids=torch.arange(len(lengths)),
        **fields,
    )


def vocabulary_of(logits: Tensor, positions: Tensor | None = None) -> VocabularyOutput:
    """A vocabulary head whose logits are exactly these: features through a unit matrix."""
    unit = torch.eye(logits.shape[-1], dtype=logits.dtype)
    return VocabularyOutput(logits, unit, torch.zeros(logits.shape[-1], dtype=logits.dtype), positions)


def leaf(values: Tensor) -> Tensor:
    return values.detach().clone().requires_grad_()

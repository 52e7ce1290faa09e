"""The slope of the loss on drawn vectors: its mean square is the second derivative of 1 minus the cosine."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from compress.contracts import Batch, EncoderOutput
from compress.stages.shared.divergence import DrawnVectors


def test_the_mean_square_of_the_slope_is_the_second_derivative() -> None:
    torch.manual_seed(0)
    vector, direction = torch.randn(1, 6, dtype=torch.float64), torch.randn(1, 6, dtype=torch.float64)
    one = torch.zeros(1, dtype=torch.int64)
    batch = Batch(one, one, one, torch.tensor([0, 1]), 1, one)
    loss = DrawnVectors(torch.Generator().manual_seed(1))
    squares = 0.0
    for _ in range(2000):
        moved = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        output = EncoderOutput(last_hidden=vector, logits=vector + moved * direction)
        (slope,) = torch.autograd.grad(loss(output, None, batch), moved)
        squares += float(slope.square()) / 2000
    step = 1e-3
    apart = sum(float(1 - F.cosine_similarity(vector + by * direction, vector)) for by in (step, -step))
    assert squares == pytest.approx(apart / step**2, rel=0.1)

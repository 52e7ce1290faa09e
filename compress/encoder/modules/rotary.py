"""Rotary positions (2104.09864): queries and keys are turned, so that their product knows how far apart they stand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each (.., 1, K/2) fp32, of positions (..)."""


def rotations(position_ids: Tensor, shapes: Sequence[tuple[float, int]]) -> list[Rotation]:
    """For each (base θ, head width K): the turn at every position; equal pairs share one."""
    made: dict[tuple[float, int], Rotation] = {}
    for base, width in shapes:
        if (base, width) not in made:
            steps = torch.arange(0, width, 2, dtype=torch.float32, device=position_ids.device)
            angle = position_ids[..., None, None].float() * (1.0 / base ** (steps / width))
            made[base, width] = (angle.cos(), angle.sin())
    return [made[shape] for shape in shapes]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """x (.., H, K) turned, in fp32 and back: dimension i with dimension i + K/2."""
    cos, sin = rotation
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

"""The mean of the layers that will share: the start that suits residuals best (2410.20672)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from compress.contracts import Member


class Start:
    """Every layer counts alike."""

    reads: ClassVar[str] = "nothing"

    def __call__(self, members: Sequence[Member]) -> Tensor:
        """(out, in) of the group."""
        return torch.stack([member.weight for member in members]).mean(0)

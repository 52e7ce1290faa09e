"""Mean of the tied layers: the best initialization with residuals (arXiv 2410.20672)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from compress.contracts import Member


class Start:
    """All layers have equal weight."""

    reads: ClassVar[str] = "nothing"

    def __call__(self, members: Sequence[Member]) -> Tensor:
        """(out, in) of the group."""
        return torch.stack([member.weight for member in members]).mean(0)

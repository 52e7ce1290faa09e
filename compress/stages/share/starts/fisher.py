"""The mean weighted by diagonal Fisher information: where a layer's loss is sensitive to a weight, that weight counts
for more (Matena and Raffel, "Merging Models with Fisher-Weighted Averaging", 2111.09832)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from compress.contracts import Member


class Start:
    """Of each weight, the mean over the layers weighted by its mean squared gradient over real rows and their labels.

    floor: added to each Fisher value, as a share of the group's mean, so that weights that nothing reads are averaged.
    """

    reads: ClassVar[str] = "gradients"

    def __init__(self, *, floor: Annotated[float, Field(gt=0, le=1)] = 1e-3) -> None:
        self.floor = floor

    def __call__(self, members: Sequence[Member]) -> Tensor:
        """(out, in) of the group."""
        weight = torch.stack([member.weight for member in members])
        fisher = torch.stack([_known(member) for member in members])
        fisher = fisher + self.floor * fisher.mean() + torch.finfo(fisher.dtype).tiny
        return (fisher * weight).sum(0) / fisher.sum(0)


def _known(member: Member) -> Tensor:
    assert member.fisher is not None, "the stage measures it, since `reads` says so"
    return member.fisher

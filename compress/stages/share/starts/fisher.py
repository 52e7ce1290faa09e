"""Mean weighted by diagonal Fisher information: weights to which the loss is sensitive count more (Matena and Raffel,
"Merging Models with Fisher-Weighted Averaging", arXiv 2111.09832)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from compress.contracts import Member


class Start:
    """Mean over the layers, each weight weighted by its mean squared gradient on labelled rows.

    floor: added to each Fisher value, as a fraction of the group's mean, so that weights without gradient are averaged.
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

"""The matrix whose products are nearest to those of the layers that will share, on real input: least squares over the
activations of each (as RegMean merges models, Jin et al., 2212.09849)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from compress.contracts import Member


class Start:
    """W that minimises the sum over layers l of E|W x - W_l x|^2, x the inputs that layer l sees in the parent.

    ridge: pull towards the mean, as a share of the inputs' mean square: directions that no input has stay the mean.
    """

    reads: ClassVar[str] = "inputs"

    def __init__(self, *, ridge: Annotated[float, Field(gt=0, le=1)] = 1e-3) -> None:
        self.ridge = ridge

    def __call__(self, members: Sequence[Member]) -> Tensor:
        """(out, in) of the group; of norms, which no linear map makes, the mean."""
        mean = torch.stack([member.weight for member in members]).mean(0)
        moments = [member.inputs for member in members if member.inputs is not None]
        if len(moments) < len(members):
            return mean
        whole = torch.stack(moments).sum(0)
        right = sum(((m.weight - mean) @ a for m, a in zip(members, moments, strict=True)), torch.zeros_like(mean))
        whole = whole + self.ridge * whole.diagonal().mean() * torch.eye(len(whole), dtype=whole.dtype)
        return mean + torch.linalg.solve(whole, right.T).T

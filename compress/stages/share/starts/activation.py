"""The matrix whose outputs are nearest to those of the tied layers on real input: least squares over the activations of
each layer (as RegMean merges models, Jin et al., arXiv 2212.09849)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from compress.contracts import Member


class Start:
    """W minimizes the sum over layers l of E|W x - W_l x|^2, where x are the inputs of layer l in the parent.

    ridge: regularization towards the mean, as a fraction of the inputs' mean square; directions without input stay at
    the mean.
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

"""Which rows of a layer's output stand for it: every token, the first of each text, or the mean of each text."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Taken = Literal["tokens", "cls", "mean"]
TAKEN: tuple[str, ...] = get_args(Taken)


def rows_of(state: Tensor, cu_seqlens: Tensor, taken: Taken = "tokens") -> Tensor:
    """(T, D) of packed real tokens → (T, D), or (B, D) for "cls" and "mean". There is no padding to count.

    cu_seqlens: (B+1,) where each text begins and ends.
    """
    if taken == "tokens":
        return state
    if taken == "cls":
        return state[cu_seqlens[:-1]]
    lengths = cu_seqlens.diff()
    text = torch.repeat_interleave(torch.arange(len(lengths), device=state.device), lengths)
    sums = torch.zeros(len(lengths), state.shape[1], dtype=torch.float64, device=state.device)
    return sums.index_add_(0, text, state.double()) / lengths[:, None]

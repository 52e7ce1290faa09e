"""The lists of numbers that a caller's own code gives: layers, heads, rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compress.errors import UserError


def list_entries(given: object, where: str) -> list[Any]:
    """The entries of a list, a range, an array or a tensor. Raises UserError for any other object."""
    if isinstance(given, np.ndarray | Tensor) and given.ndim:
        return given.tolist()
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return list(given)
    raise UserError(f"this is no list, but an object of the type {type(given).__name__}", where=where, do="give a list")


def row_numbers(given: object, where: str) -> Tensor:
    """(n,) int64 on the CPU. Raises UserError for what is no list, array or tensor of whole numbers."""
    if isinstance(given, Tensor) and given.ndim == 1 and given.dtype in (torch.int32, torch.int64):
        return given.to("cpu", torch.int64)
    entries = list_entries(given, where)
    wrong = next((one for one in entries if not isinstance(one, int | np.integer) or isinstance(one, bool)), None)
    if wrong is not None:
        raise UserError(f"{wrong!r} is not the number of a row", where=where, do="give whole numbers")
    return torch.tensor(entries, dtype=torch.int64)

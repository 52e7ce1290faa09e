"""Encodes teacher outputs with 32, 16 or 8 bits per number.

32: fp32.  16: bf16 of a teacher that computes in bf16, which loses nothing, else fp16.  8: each vector (the answers to
a row, the state of a token) from its smallest number to its largest in 255 equal steps, beside which both ends are kept
in fp32; so a number is off by 1/510 of its vector's range at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from compress.errors import ExitCode, UserError

Bits = Literal[8, 16, 32]
StoredPrecision = Literal["fp32", "fp16", "bf16", "int8"]
NARROW = 8
"""Numbers of a vector up to which 8 bits save nothing: the two ends of its range take as much."""

_STEPS = 255
_LARGEST = torch.finfo(torch.float16).max
_STORED = {"fp32": np.float32, "fp16": np.float16, "bf16": np.int16, "int8": np.uint8}


def choose_stored_precision(bits: Bits, width: int, precision: str) -> StoredPrecision:
    """How vectors of `width` numbers from a teacher that computes in `precision` are kept."""
    if bits == 32:
        return "fp32"
    if bits == 8 and width > NARROW:
        return "int8"
    return "bf16" if precision == "bf16" else "fp16"


def columns(kept: StoredPrecision, width: int) -> dict[str, tuple[np.dtype, int]]:
    """Name of an array → (type, width), of which vectors of `width` numbers are made up on the disk."""
    ends = {"ends": (np.dtype(np.float32), 2)} if kept == "int8" else {}
    return {"values": (np.dtype(_STORED[kept]), width), **ends}


def encode(values: Tensor, kept: StoredPrecision, what: str) -> dict[str, np.ndarray]:
    """(n, W) → arrays of n rows by the names of `columns`. what: is named in errors.

    Raises UserError (data) for numbers that are not finite, or too large for 16 bits.
    """
    wide = values.detach().float().cpu()
    if not bool(torch.isfinite(wide).all()):
        raise UserError(
            f"the teacher's {what} contain NaN or infinite values",
            why="a student cannot learn from them",
            do="check the teacher: compress evaluate FOLDER --data DATA",
            code=ExitCode.DATA,
        )
    if kept == "fp32":
        return {"values": wide.numpy()}
    if kept == "bf16":
        return {"values": wide.to(torch.bfloat16).view(torch.int16).numpy()}
    if kept == "fp16":
        if float(wide.abs().max() if wide.numel() else 0) > _LARGEST:
            raise UserError(
                f"the teacher's {what} are too large for 16 bits",
                why=f"found up to {float(wide.abs().max()):.3g}, the fp16 maximum is {_LARGEST:g}",
                do="set cache.bits: 32",
                code=ExitCode.DATA,
            )
        return {"values": wide.half().numpy()}
    low, high = torch.aminmax(wide, dim=1, keepdim=True)
    step = (high - low) / _STEPS
    places = ((wide - low) / step.clamp_min(torch.finfo(torch.float32).tiny)).round_().clamp_(0, _STEPS)
    return {"values": places.to(torch.uint8).numpy(), "ends": torch.cat([low, high], dim=1).numpy()}


def decode(arrays: Mapping[str, np.ndarray], kept: StoredPrecision) -> Tensor:
    """What `encode` was given, as near as was kept: (n, W), fp32."""
    values = torch.from_numpy(arrays["values"])
    if kept == "bf16":
        return values.view(torch.bfloat16).float()
    if kept == "int8":
        low, high = torch.from_numpy(arrays["ends"]).split(1, dim=1)
        return torch.addcmul(low, values.float(), (high - low) / _STEPS)
    return values.float()

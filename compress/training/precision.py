"""The precision of the matrix products; weights, gradients and optimizer state are fp32 throughout."""

from __future__ import annotations

import logging
from typing import Literal

import torch

from compress.errors import ExitCode, UserError

Precision = Literal["auto", "fp32", "bf16"]
Resolved = Literal["fp32", "bf16"]

_log = logging.getLogger("compress.training")


def resolve(precision: Precision, device: torch.device) -> Resolved:
    """auto → bf16 where the device has instructions for it, else fp32.

    bf16 asked for by name on a CPU without them works, slowly, and says so; on a GPU without it, it is refused.
    """
    if precision == "fp32":
        return "fp32"
    if computes_bf16(device):
        return "bf16"
    if precision == "auto":
        return "fp32"
    if device.type != "cpu":
        raise UserError(
            "this device cannot compute in bf16",
            where="precision",
            why=str(device),
            do="use --precision fp32",
            code=ExitCode.ENVIRONMENT,
        )
    _log.warning("this CPU has no bf16 instructions: bf16 will be slower than fp32")
    return "bf16"


def computes_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices natively (AVX512-BF16 or AMX on a CPU)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        # No public question is there for it yet; absent in another torch version, it counts as a no.
        return any(
            bool(getattr(torch.cpu, name, lambda: False)())
            for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        )
    return False


def autocast(precision: Resolved, device: torch.device) -> torch.autocast:
    """Context in which a forward pass runs in `precision`."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")

"""The precision of matrix products, in training and of finished models: what a device computes in is chosen here.

Weights, gradients and optimizer state of a training are fp32 throughout.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
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


def serving_precision(precision: Precision, device: str | torch.device) -> Resolved:
    """What a finished model computes in: `auto` is bf16 on a GPU with instructions for it, else fp32.

    Raises UserError as `resolve` does.
    """
    found = torch.device(device)
    if found.type == "cpu":
        return "bf16" if precision == "bf16" else "fp32"
    return resolve(precision, found)


@contextmanager
def allow_tf32(precision: Resolved, device: torch.device) -> Iterator[None]:
    """Inside this block, a GPU that trains in bf16 multiplies what is left in fp32 in TF32.

    Not after `--precision fp32`, which means fp32, nor where deterministic algorithms are requested. On other devices
    nothing changes.
    """
    if device.type != "cuda" or precision != "bf16" or torch.are_deterministic_algorithms_enabled():
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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

"""Whether Triton compiles and launches kernels on this machine's GPU."""

from __future__ import annotations

import functools
import logging

import torch

from compress.errors import printable

_log = logging.getLogger("compress.training")

OPTIONS = {"enable_fp_fusion": True}
"""Of every launch: a product and the sum after it are rounded once. Triton asks for a choice from 3.9 on."""


@functools.cache
def are_working() -> bool:
    """Whether a kernel can be launched here. If not, one warning reports why."""
    try:
        try_out()
    except Exception as error:  # whatever Triton, its compiler or a driver raise
        why = "triton is not installed" if isinstance(error, ImportError) else str(error).strip().partition("\n")[0]
        _log.warning(
            "norms and vocabulary losses are slower on this GPU (%s); install the triton version of this torch",
            printable(why, 160),
        )
        return False
    return True


def try_out() -> None:
    """Launch a kernel on the GPU. Raises ImportError without triton, and what it, its compiler or a driver raise."""
    from compress.encoder.kernels import _probe_triton

    _probe_triton.probe_kernel[(1,)](torch.empty(1, device="cuda"), **OPTIONS)

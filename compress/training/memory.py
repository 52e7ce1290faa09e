"""Memory: freed pages kept for the next step, and running out of it as one clear line."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from compress.contracts import Batch
from compress.errors import ExitCode, UserError, is_out_of_memory
from compress.storage.disk import human_bytes


def keep_pages() -> None:
    """Let the C library keep what is freed, instead of handing large blocks back to the system at once.

    A step frees and asks again for the same tens of large arrays (table gradients, low-precision copies, logits), and
    each time the system would clear every page anew: a sixth of a BERT-base distillation step on a CPU. The price is
    that the process stays as large as it once was. Where the C library is not glibc, nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4  # malloc.h
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


@contextmanager
def report_out_of_memory(batches: Sequence[Batch], device: torch.device) -> Iterator[None]:
    """Inside this block, an allocation that fails leaves as a UserError (resources, exit 5) about these batches."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not batches or not is_out_of_memory(error):
            raise
        raise _explained(batches, device) from error


def _explained(batches: Sequence[Batch], device: torch.device) -> UserError:
    largest = max(batches, key=lambda batch: batch.tokens)
    why = f"{largest.rows} rows, {largest.tokens} tokens, longest {largest.max_length}{_peak(device)}"
    do = "set a smaller training.max_tokens, a shorter maximum length, or precision bf16"
    where = "GPU" if device.type == "cuda" else "this machine"
    return UserError(f"{where} ran out of memory in a micro-batch", why=why, do=do, code=ExitCode.RESOURCES)


def _peak(device: torch.device) -> str:
    if device.type == "cuda":
        return f", peak {human_bytes(torch.cuda.max_memory_allocated(device))}"
    try:
        import resource
    except ImportError:  # not on Windows
        return ""
    return f", peak {human_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)}"

"""Memory: running out of it as one clear line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from compress.contracts import Batch
from compress.durable.disk import human_bytes
from compress.errors import ExitCode, UserError

_CPU_SIGNS = ("can't allocate memory", "not enough memory", "Cannot allocate memory", "bad_alloc")


@contextmanager
def told(batches: Sequence[Batch], device: torch.device) -> Iterator[None]:
    """Inside this block, an allocation that fails leaves as a UserError (resources, exit 5) about these batches."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On a CPU torch raises a plain RuntimeError; on a GPU a class of its own.
        plain = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not plain and not any(sign in str(error) for sign in _CPU_SIGNS):
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

"""Memory: freed pages kept for the next step, and running out of it as one clear line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from compress.contracts import Batch
from compress.encoder.config.encoder import EncoderConfig
from compress.errors import ExitCode, UserError, is_out_of_memory
from compress.storage.disk import human_bytes
from evaluation.cost.gpu import read_system_metrics
from evaluation.cost.memory import find_in_glibc


def keep_pages() -> None:
    """Let the C library keep what is freed, instead of handing large blocks back to the system at once.

    A step frees and asks again for the same tens of large arrays (table gradients, low-precision copies, logits), and
    each time the system would clear every page anew: a sixth of a BERT-base distillation step on a CPU. The price is
    that the process stays as large as it once was. Where the C library is not glibc, nothing happens.
    """
    if (mallopt := find_in_glibc("mallopt")) is not None:
        trim_threshold, mmap_max = -1, -4  # malloc.h
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def read_gpu(device: torch.device) -> dict[str, float]:
    """Of a GPU, for the log: the peak of the allocated memory, and with nvidia-ml-py its load, memory and power."""
    if device.type != "cuda":
        return {}
    return {"train/peak_memory_mb": torch.cuda.max_memory_allocated(device) / 1e6, **read_system_metrics(device)}


def forget_peak(device: torch.device) -> None:
    """The peak of a GPU's allocated memory counts from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


SPARE = 0.85
"""Part of the estimated budget that is recommended: what failed may not have been the last allocation of the step."""
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_REQUESTED = re.compile(r"Tried to allocate ([\d.]+) (bytes|[KMGT]iB)")


MOST_TOKENS = 65_536
"""Tokens of a forward pass above which a GPU gains nothing more: its kernels are full, and results come later."""


def choose_token_budget(config: EncoderConfig, device: str | torch.device, on_cpu: int) -> int:
    """Tokens of one forward pass without gradient: `on_cpu` on a CPU, whose caches they should fit; on a GPU as many as
    fit into half of the memory that is free now."""
    found = torch.device(device)
    if found.type != "cuda":
        return on_cpu
    widest = max((max(shape.heads * shape.head_width, shape.feed_forward) for shape in config.layers), default=0)
    # Of a layer at work: input, residual, queries, keys, values and context; twice the inner width; in fp32.
    each = 4 * (6 * config.hidden + 2 * widest)
    free, _ = torch.cuda.mem_get_info(found)
    return max(min(config.max_positions, on_cpu), min(MOST_TOKENS, free // 2 // each))


@contextmanager
def report_out_of_memory(batches: Sequence[Batch], device: torch.device, kept: str | None = None) -> Iterator[None]:
    """Inside this block, an allocation that fails leaves as a UserError (resources, exit 5) about these batches.

    kept: the checkpoint that a run would continue from.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not batches or not is_out_of_memory(error):
            raise
        raise _explained(batches, device, error, kept) from error


def _explained(
    batches: Sequence[Batch], device: torch.device, error: RuntimeError | MemoryError, kept: str | None
) -> UserError:
    largest = max((batch.without_padding for batch in batches), key=lambda batch: batch.tokens)
    why = f"{largest.rows} rows, {largest.tokens} tokens, longest {largest.max_length}{_peak(device)}"
    do = "set a smaller training.max_tokens, a shorter maximum length, or precision bf16"
    if device.type == "cuda":
        fits = _measure_budget(largest.tokens, device, error)
        if fits is not None and fits >= largest.max_length:
            do = f"use --set stages.*.training.max_tokens={fits}, a shorter maximum length, or precision bf16"
        elif fits is not None:
            do = f"use a maximum length of {fits} tokens or less, or precision bf16"
    if kept is not None:
        why += f"; {kept} is kept"
        do += "; of these, --resume accepts only --precision bf16"
    where = "GPU" if device.type == "cuda" else "this machine"
    return UserError(f"{where} ran out of memory in a micro-batch", why=why, do=do, code=ExitCode.RESOURCES)


def _measure_budget(tokens: int, device: torch.device, error: RuntimeError | MemoryError) -> int | None:
    """Tokens of a micro-batch that would fit where one of `tokens` failed with `error`; None where it is not known."""
    requested = parse_requested_bytes(str(error))
    if requested is None:
        return None
    peak = torch.cuda.max_memory_allocated(device)
    free, _ = torch.cuda.mem_get_info(device)
    traceback.clear_frames(error.__traceback__)  # they hold the activations of the step
    return estimate_budget(tokens, peak, requested, torch.cuda.memory_allocated(device), free)


def parse_requested_bytes(message: str) -> int | None:
    """Bytes that torch says it failed to allocate on a GPU."""
    found = _REQUESTED.search(message)
    return None if found is None else int(float(found[1]) * _UNITS[found[2]])


def estimate_budget(tokens: int, peak: int, requested: int, base: int, free: int) -> int | None:
    """Tokens whose activations fit beside weights, gradients and optimizer state; None where nothing would be left.

    tokens: of the micro-batch that failed.  peak: most bytes that were allocated, base: those of them that are there
    between two micro-batches.  requested: bytes that were not there any more.  free: bytes that the device has left.
    """
    room, needed = peak - base + min(free, requested), peak - base + requested
    fits = int(SPARE * tokens * room / needed) if needed > 0 else 0
    rounded = fits // 64 * 64 or fits
    return rounded if 0 < rounded < tokens else None


def _peak(device: torch.device) -> str:
    if device.type == "cuda":
        return f", peak {human_bytes(torch.cuda.max_memory_allocated(device))}"
    try:
        import resource
    except ImportError:  # not on Windows
        return ""
    return f", peak {human_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)}"

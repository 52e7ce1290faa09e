"""Peak memory of a call."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

MB = 1_000_000


def return_pages() -> None:
    """Give the system what the C library keeps of freed memory: after large models of which little stays, and before
    memory is measured. Where the C library is not glibc, nothing happens."""
    if (trim := find_in_glibc("malloc_trim")) is not None:
        trim(0)


def find_in_glibc(name: str) -> Any:
    """A function of the C library; None where it is not there."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def peak_memory_mb(call: Callable[[], Any], device: str = "cpu") -> float:
    """Megabytes by which memory in use rose above its level before `call`, at the highest point during it.

    CUDA: the allocator's own peak. CPU: resident memory of this process, by the kernel's high-water mark where it can
    be reset (Linux), else sampled every 2 ms.
    """
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / MB
    before = _resident()
    if _reset_high_water():
        call()
        return max(0, _high_water() - before) / MB
    return _sampled(call)


def _resident() -> int:
    """Bytes resident without what the C library keeps of freed memory: a call that fills it again is not free."""
    return_pages()
    return psutil.Process().memory_info().rss


def _reset_high_water() -> bool:
    try:
        with open("/proc/self/clear_refs", "w") as handle:
            handle.write("5")
    except OSError:
        return False
    return True


def _high_water() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def _sampled(call: Callable[[], Any]) -> float:
    before = _resident()
    process, peak, done = psutil.Process(), [before], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return max(0, peak[0] - before) / MB

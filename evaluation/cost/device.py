"""What a speed was measured on. A latency without these lines must not be compared with another."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


@cache
def cpu_name() -> str:
    """The processor's name as the system tells it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


@cache
def cpu_flags() -> tuple[str, ...]:
    """The instruction sets, of those that matter here, which this processor has."""
    flags = set(_cpuinfo("flags").split())
    return tuple(flag for flag in FLAGS if flag in flags)


def describe(device: str = "cpu") -> dict[str, str]:
    """Device, threads and torch, as written beside every speed."""
    if device.startswith("cuda"):
        name = torch.cuda.get_device_name(device)
    else:
        name = cpu_name()
    return {
        "device": name,
        "device_kind": device.split(":")[0],
        "threads": str(torch.get_num_threads()),
        "cpu_flags": " ".join(cpu_flags()),
        "torch": torch.__version__,
        "isa": torch.backends.cpu.get_cpu_capability(),
    }


def _cpuinfo(key: str) -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    for line in text.splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return ""

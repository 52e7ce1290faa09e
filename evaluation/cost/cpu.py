"""What the processor is and which instructions it has, as far as a compressed model's speed or answers depend on them.

Read from Linux' /proc/cpuinfo; elsewhere the name is what Python knows, and no instruction is known.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "bf16",
    "i8mm",
)
INT8_PRODUCTS = ("avx512_vnni", "avx_vnni", "amx_int8")
"""Any of these sums products of 8-bit numbers in 32 bits."""


@cache
def cpu_name() -> str:
    """The processor's name as the system tells it."""
    return _entry("model name") or platform.processor() or platform.machine()


@cache
def cpu_flags() -> tuple[str, ...]:
    """The instruction sets, of those that matter here, which this processor has; empty where it is not known."""
    there = set((_entry("flags") or _entry("Features")).split())
    return tuple(flag for flag in FLAGS if flag in there)


def saturates() -> bool:
    """Whether products of unsigned and signed 8-bit numbers may be wrong in kernels that do not look out for it.

    An x86 processor without VNNI adds two such products in 16 bits, and what does not fit is cut.
    """
    return platform.machine().lower() in ("x86_64", "amd64") and not set(INT8_PRODUCTS) & set(cpu_flags())


def _entry(key: str) -> str:
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        name, found, value = line.partition(":")
        if found and name.strip() == key:
            return value.strip()
    return ""

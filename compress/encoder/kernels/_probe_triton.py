"""A kernel that shows that kernels can be compiled and launched."""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def probe_kernel(x):
    """Write a number."""
    tl.store(x, 1.0)

"""Floating-point operations of one call, counted by torch's dispatcher; a multiply-add counts as two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_flops(call: Callable[[], Any]) -> int:
    """Operations of the matrix products that `call` runs.

    The fused CPU attention kernel counts as zero in torch's counter (14 % short at length 64), so the products are
    counted under the math backend, where attention is made of ordinary matrix multiplications. `call` must run plain
    torch modules: packed oneDNN operators are unknown to the counter and would count as nothing.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        call()
    return counter.get_total_flops()

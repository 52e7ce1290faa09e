"""How well training uses its device: model FLOPs utilization (MFU), energy, and waits of the host for a GPU.

MFU (Chowdhery et al., 2204.02311) is the arithmetic of the models, as a share of what the device computes in the same
time at its peak. The peak is measured: a product of two large matrices in the precision of the training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import nn

from compress.contracts import Batch
from compress.errors import is_out_of_memory
from compress.training.module import StageModule
from compress.training.precision import Resolved
from evaluation.cost import energy, gpu

PRODUCT = 8192
"""Rows and columns of the matrices whose product is the peak."""
COUNTED = 4
"""The step whose waits are counted, from 0 in each session: by then kernels are compiled and memory is allocated."""

_Made = TypeVar("_Made")


class Efficiency:
    """Of one training. is_alone: no other process trains with it; counters of a CPU would count what those take."""

    def __init__(self, module: nn.Module, device: torch.device, precision: Resolved, *, is_alone: bool) -> None:
        is_known = device.type == "cuda" and isinstance(module, StageModule) and _trains_all(module)
        self._module = module if is_known and isinstance(module, StageModule) else None
        self._on_gpu = device.type == "cuda"
        self.peak = measure_peak(device, precision) if is_known else None
        """Operations a second; None where there is no MFU."""
        found = energy.find_counters(str(device)).found if self._on_gpu or is_alone else ()
        self.energy = energy.EnergyMeter(found)
        self._steps = 0

    def count_operations(self, batches: Sequence[Batch]) -> int:
        """Of a step on batches that are on the host; 0 where they are not known."""
        if self._module is None or self.peak is None:
            return 0
        found = [self._module.count_operations(batch) for batch in batches]
        return sum(count or 0 for count in found) if None not in found else 0

    def watch(self, make_step: Callable[[], _Made]) -> tuple[_Made, int | None]:
        """What a step gives, and on one early step on a GPU how often the host waited for it in there."""
        self._steps += 1
        if not self._on_gpu or self._steps != COUNTED + 1:
            return make_step(), None
        made: list[_Made] = []
        waits = gpu.count_waits(lambda _: made.append(make_step()))
        return made[0], waits


def _trains_all(module: StageModule) -> bool:
    """Whether the backward pass makes two products of each of the student's: none of its matrices is frozen."""
    return all(weight.requires_grad for weight in module.student.parameters() if weight.dim() == 2)


@functools.cache
def measure_peak(device: torch.device, precision: Resolved) -> float | None:
    """Operations a second, measured once in a process; None where the matrices do not fit into the memory."""
    try:
        return gpu.measure_products(PRODUCT, torch.bfloat16 if precision == "bf16" else torch.float32, device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        torch.cuda.empty_cache()

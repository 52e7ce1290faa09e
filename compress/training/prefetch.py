"""Steps that a thread prepares while the device computes: rows are taken, packed, and laid out for one copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from compress.contracts import Batch, BatchSource

AHEAD = 2
"""Steps that are prepared beside the one that is asked for."""


class Prefetch:
    """Is a BatchSource: the steps of `source`, ready to be copied to `device`. A thread prepares those that follow.

    The source is called by one thread at a time: others may call it only after `settle`. What it raises is raised by
    `step`. On a CPU there is no thread: it would take its time from the computation.
    """

    def __init__(self, source: BatchSource, device: torch.device) -> None:
        self.source, self.device, self.fingerprint = source, device, source.fingerprint
        self.pad: Callable[[Sequence[Batch]], Sequence[Batch]] = lambda batches: batches
        """What becomes of the micro-batches of a step before they are laid out; set before the first step."""
        self._thread = None if device.type == "cpu" else ThreadPoolExecutor(1, "prefetch")
        self._ahead: deque[tuple[tuple[int, int], Future[tuple[Sequence[Batch], int]]]] = deque()

    def steps(self, epoch: int) -> int:
        """Optimizer steps in this epoch."""
        self.settle()
        return self.source.steps(epoch)

    def step(self, epoch: int, index: int, left: int = 0) -> Sequence[Batch]:
        """The micro-batches of one optimizer step. left: steps that may follow it; some of this epoch are begun."""
        if self._thread is None:
            return self.source.step(epoch, index)
        if not self._ahead or self._ahead[0][0] != (epoch, index):
            self._drop()
            self._begin(self._thread, epoch, index)
        batches, steps = self._ahead.popleft()[1].result()
        for following in range(index + 1 + len(self._ahead), min(index + min(left, AHEAD) + 1, steps)):
            self._begin(self._thread, epoch, following)
        return batches

    def settle(self) -> None:
        """Wait until the thread is idle."""
        wait([future for _, future in self._ahead])

    def close(self) -> None:
        """End the thread."""
        self._drop()
        if self._thread is not None:
            self._thread.shutdown()

    def _begin(self, thread: ThreadPoolExecutor, epoch: int, index: int) -> None:
        self._ahead.append(((epoch, index), thread.submit(self._prepare, epoch, index)))

    def _prepare(self, epoch: int, index: int) -> tuple[Sequence[Batch], int]:
        """The step, and how many its epoch has."""
        batches = [batch.stage(self.device) for batch in self.pad(self.source.step(epoch, index))]
        return batches, self.source.steps(epoch)

    def _drop(self) -> None:
        for _, future in self._ahead:
            future.cancel()
        self.settle()
        self._ahead.clear()

"""Gradients on their way between processes: many small ones travel as a few large ones, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET = 32 << 20  # bytes that travel together


def buckets(gradients: Sequence[Tensor]) -> list[Bucket]:
    """All of them, in order."""
    return [Bucket(part) for part in _parts(gradients)]


class Bucket:
    """Gradients that travel together."""

    def __init__(self, gradients: list[Tensor]) -> None:
        self._gradients = gradients
        self._flat = torch.cat([g.reshape(-1) for g in gradients])

    def send(self, group: dist.ProcessGroup | None = None) -> None:
        """Begin to add them over the processes of `group`, of all where it is None."""
        self._work = dist.all_reduce(self._flat, group=group, async_op=True)

    def arrive(self) -> None:
        """Wait for the sums, and put them back."""
        assert self._work is not None
        self._work.wait()
        for gradient, part in zip(self._gradients, self._flat.split([g.numel() for g in self._gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def _parts(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one kind, in order, as many as fit into a bucket."""
    held: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if held and (gradient.dtype != held[0].dtype or size + gradient.nbytes > BUCKET):
            yield held
            held, size = [], 0
        held.append(gradient)
        size += gradient.nbytes
    if held:
        yield held

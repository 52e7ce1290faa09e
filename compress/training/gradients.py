"""Gradients on their way between processes: many small ones travel as a few large ones, while others are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

BUCKET = 32 << 20  # bytes that travel together
ALIGNED = 8  # numbers; where each gradient begins, so that the optimizer reads several at once


class Bucket:
    """Gradients that travel together. flat: one after the other.  places: of each parameter in `flat`."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        sizes = [-(-p.numel() // ALIGNED) * ALIGNED for p in parameters]
        self.flat = parameters[0].detach().new_zeros(sum(sizes))
        parts = zip(parameters, self.flat.split(sizes), strict=True)
        self.places = {p: part[: p.numel()].view(p.shape) for p, part in parts}
        self.missing: set[Tensor] = set(parameters)


class GradientSum:
    """Adds the gradients of `parameters` over the processes; each bucket begins to travel during the last backward
    pass of a step, as soon as the last of its gradients is there.

    Every process sends every bucket, in the same order, whatever it has computed: a collective operation that one of
    them leaves out would be answered by the next one. Buckets are in the opposite order of the parameters, which is
    about the order in which a backward pass reaches them.
    """

    def __init__(self, parameters: Sequence[Tensor], send: Callable[[Tensor], Any]) -> None:
        """send: begins to add a tensor over the processes, in place; gives what has `wait`."""
        self._parameters, self._send = list(parameters), send
        self._buckets = [Bucket(part) for part in _parts(self._parameters[::-1])]
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.places}
        self._hooks = [p.register_post_accumulate_grad_hook(self._take) for p in self._parameters]
        self.begin()

    def begin(self) -> None:
        """A step begins: there are no gradients."""
        self._used: set[Tensor] = set()
        self._works: list[Any] = []
        self._is_last = False
        for bucket in self._buckets:
            bucket.missing = set(bucket.places)

    def expect_last(self) -> None:
        """The next backward pass is the last one of this step."""
        self._is_last = True

    def flush(self) -> None:
        """Send what is left; a parameter without a gradient sends zeros."""
        for p in self._parameters:
            if p not in self._used:
                self._bucket_of[p].places[p].zero_()
        for bucket in self._buckets[len(self._works) :]:
            self._works.append(self._send(bucket.flat))

    @property
    def used(self) -> list[bool]:
        """Of each parameter, whether this process has a gradient of it."""
        return [p in self._used for p in self._parameters]

    def arrive(self, used: Sequence[int]) -> None:
        """Wait for the sums. used: of each parameter, how many processes have a gradient; none leaves it without."""
        self.wait()
        for p, count in zip(self._parameters, used, strict=False):
            p.grad = self._bucket_of[p].places[p] if count else None

    def wait(self) -> None:
        """Wait until all that was sent has been added."""
        for work in self._works:
            work.wait()

    def remove(self) -> None:
        """Leave the parameters alone from now on."""
        for hook in self._hooks:
            hook.remove()

    def _take(self, parameter: Tensor) -> None:
        """A gradient was computed, or added to: it moves into its bucket, and stays there."""
        bucket = self._bucket_of[parameter]
        place = bucket.places[parameter]
        if parameter not in self._used:
            assert parameter.grad is not None
            place.copy_(parameter.grad)
            parameter.grad = place
            self._used.add(parameter)
        if self._is_last:
            bucket.missing.discard(parameter)
            while len(self._works) < len(self._buckets) and not self._buckets[len(self._works)].missing:
                self._works.append(self._send(self._buckets[len(self._works)].flat))


def _parts(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one kind, in order, as many as fit into a bucket."""
    held: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if held and (tensor.dtype != held[0].dtype or size + tensor.nbytes > BUCKET):
            yield held
            held, size = [], 0
        held.append(tensor)
        size += tensor.nbytes
    if held:
        yield held

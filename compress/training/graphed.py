"""Training steps as CUDA graphs: the host replays teacher, student, losses, backward pass and optimizer by one call.

A graph has fixed shapes and fixed memory: a batch is copied to where that of the capture lay. What the host knew of
that batch is a constant of the graph. So a step is replayed if its tensors have the same shapes, its losses count as
many things, and what the host read of it is equal. `fixed_sizes` pads steps to that end: by what their losses are
divided then lies in the batch. All other steps are computed as without graphs.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from compress.contracts import Batch
from compress.encoder.infer.graphs import WARM_UPS, Capture, record_graph, warm_up
from compress.encoder.kernels.add_norm import fuse_all
from compress.errors import printable
from compress.training.module import StageModule

MOST_GRAPHS = 4
"""Each keeps the gradients of a step."""
PATIENCE = 100
"""Steps without a replay after which no more shapes are tried."""

Figures = dict[str, Tensor]
Key = tuple[Any, ...]

_log = logging.getLogger("compress.training")


def find_obstacle(module: nn.Module, device: torch.device, has_team: bool) -> str | None:
    """Why no step of this training can be a graph, for people; None: it is tried. has_team: several processes train."""
    if device.type != "cuda":
        return "there are no CUDA graphs on a CPU"
    if has_team:
        return "CUDA graphs do not support several processes"
    if not isinstance(module, StageModule) or module.companions:
        return "a loss of this training changes from step to step"
    return None


class _Graph(NamedTuple):
    """buffer: of the batch on the device.  constants: what the host read of it.  figures: of the step, (N,), by name
    in `names`."""

    buffer: Tensor
    constants: Mapping[str, bytes]
    names: tuple[str, ...]
    figures: Tensor
    replay: Callable[[], object]


class GraphedSteps:
    """Makes the steps of a training, by graphs where they can be.

    compute: a step of one batch on the device → its figures.  compute_plainly: of any batches, on the host.
    say: what people are told; None: only of captures that fail.  most_tokens: of a step that is replayed.
    """

    def __init__(
        self,
        compute: Callable[[Batch, Mapping[str, int]], Figures],
        compute_plainly: Callable[[Sequence[Batch], Mapping[str, int]], Figures],
        device: torch.device,
        say: Callable[[str], None] | None,
        capture: Capture = record_graph,
        most_tokens: float = math.inf,
    ) -> None:
        self._compute, self._compute_plainly = compute, compute_plainly
        self._device, self._say, self._capture = device, say, capture
        self._most_tokens = most_tokens
        self._graphs: dict[Key, _Graph] = {}
        self._seen: Counter[Key] = Counter()
        self._without = 0
        self._gave_up = False
        self._steps = self._tokens = self._padding = 0
        self.replays = 0

    def make_step(self, batches: Sequence[Batch], totals: Mapping[str, int]) -> Figures:
        """Gradients and the optimizer's step, at the rate that was set; returns the figures. totals: of each loss."""
        self._steps += 1
        self._tokens += sum(batch.tokens for batch in batches)
        self._padding += sum(batch.tokens - batch.without_padding.tokens for batch in batches)
        if self._say is None and (len(batches) != 1 or batches[0].tokens > self._most_tokens):
            return self._compute_plainly(batches, totals)
        if self._gave_up:
            return self._compute_alone(batches, totals)
        key = _find_key(batches, totals)
        if key is None:
            return self._make_plainly(batches, totals)
        (batch,) = batches
        graph = self._graphs.get(key) or self._try_capture(key, batch, totals)
        if graph is None or not _has_constants(batch, graph.constants):
            if len(self._graphs) < MOST_GRAPHS:  # else nothing is captured anymore, and keys would add up
                self._seen[key] += 1
            return self._make_plainly(batches, totals)
        assert batch.parcel is not None
        self._without = 0
        self.replays += 1
        batch.parcel.refill(graph.buffer)
        graph.replay()
        return dict(zip(graph.names, graph.figures.clone().unbind(), strict=True))

    def summarize(self) -> str | None:
        """How many steps were replayed so far, for people; None of none where nobody asked for graphs."""
        if not self.replays and self._say is None:
            return None
        padding = f"; {self._padding / self._tokens:.0%} of the tokens were padding" if self._padding else ""
        return f"{self.replays:,} of {self._steps:,} steps were replayed as CUDA graphs{padding}"

    def _make_plainly(self, batches: Sequence[Batch], totals: Mapping[str, int]) -> Figures:
        """As before a capture, which these steps warm up for."""
        self._without += 1
        if self._without > PATIENCE:
            self._gave_up = True
            if self._say is not None:
                _warn("the shapes of the batches differ from step to step")
        if self._gave_up:
            return self._compute_alone(batches, totals)
        return warm_up(lambda: self._compute_plainly(batches, totals))

    def _compute_alone(self, batches: Sequence[Batch], totals: Mapping[str, int]) -> Figures:
        """By the kernels of a graph, so that a run does not depend on which of its steps were replayed."""
        with fuse_all():
            return self._compute_plainly(batches, totals)

    def _try_capture(self, key: Key, batch: Batch, totals: Mapping[str, int]) -> _Graph | None:
        if self._seen[key] < WARM_UPS or len(self._graphs) >= MOST_GRAPHS:
            return None
        try:
            self._graphs[key] = self._record(batch, totals)
        except Exception as error:  # whatever CUDA, a library or the model raise
            self._gave_up = True
            _warn(f"the capture failed ({printable(str(error).strip().partition(chr(10))[0], 160)})")
            return None
        if len(self._graphs) == 1 and self._say is not None:
            self._say(f"training steps like this one are replayed as CUDA graphs: {batch.tokens} tokens")
        return self._graphs[key]

    def _record(self, batch: Batch, totals: Mapping[str, int]) -> _Graph:
        assert batch.parcel is not None
        seen = dataclasses.replace(batch)  # nothing was read of it yet
        buffer, there = batch.parcel.load(self._device)
        static = seen.unpack(there, self._device)
        names: list[str] = []

        def compute() -> Tensor:
            found = self._compute(static, totals)
            names.extend(found)
            return torch.stack([value.float() for value in found.values()])

        with RejectHostCopies():
            figures, replay = self._capture(compute)
        constants = {name: seen.values.inspect(name).tobytes() for name in seen.values.read}
        return _Graph(buffer, constants, tuple(names), figures, replay)


def _warn(why: str) -> None:
    _log.warning("training without CUDA graphs from here on: %s", why)


class RejectHostCopies(TorchDispatchMode):
    """Inside, a copy from the host to the device raises RuntimeError: a replay would copy what then lies
    in its place."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet, aten = func.overloadpacket, torch.ops.aten
        if packet is aten.copy_:
            source, target = args[1].device.type, args[0].device.type
        elif packet is aten._to_copy:
            source, target = args[0].device.type, str(kwargs.get("device") or "cpu").partition(":")[0]
        else:
            return func(*args, **kwargs)
        if source == "cpu" and target == "cuda":
            raise RuntimeError("the step copies a tensor from the host")
        return func(*args, **kwargs)


def _find_key(batches: Sequence[Batch], totals: Mapping[str, int]) -> Key | None:
    """What must be equal beside constants; None of steps that are no graph."""
    if len(batches) != 1 or batches[0].parcel is None:
        return None
    (batch,) = batches
    if any(hasattr(x, "to") and not isinstance(x, Tensor) for x in batch.extra.values()):
        return None  # it does not travel with the parcel
    assert batch.parcel is not None
    counts = tuple(totals.items() if batch.shares is None else (name for name, count in totals.items() if count))
    return batch.parcel.places, batch.max_length, counts


def _has_constants(batch: Batch, constants: Mapping[str, bytes]) -> bool:
    return all(batch.values.inspect(name).tobytes() == value for name, value in constants.items())

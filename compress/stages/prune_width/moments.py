"""Second moments of what flows through heads, neurons and the channels of the hidden states on real text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from compress.contracts import Batch
from compress.encoder.modules.gates import freeze_weights
from compress.encoder.modules.layers import Attention, FeedForward
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import unit_modules, units


@dataclass(frozen=True)
class Moments:
    """Means over real tokens, fp64 on the CPU; over all layers of a unit.

    heads: for each unit (H, K, K), of the context of each head with itself.  neurons: for each unit (F,), mean squares
    of what the second feed-forward matrix reads.  stream: (D,) mean squares of what layers read, every layer alike.
    """

    heads: list[Tensor]
    neurons: list[Tensor]
    stream: Tensor


class _Sum:
    """A running mean over tokens."""

    def __init__(self) -> None:
        self.total, self.tokens = torch.zeros((), dtype=torch.float64), 0

    def add(self, found: Tensor, tokens: int) -> None:
        self.total = self.total + found.double().cpu()
        self.tokens += tokens

    @property
    def mean(self) -> Tensor:
        return self.total / self.tokens


def collect(model: Model, batches: Sequence[Batch], stop: Callable[[], None] = lambda: None) -> Moments:
    """Over all batches. The model is called in evaluation mode and left as it was."""
    heads = [_Sum() for _ in units(model.config, "attention")]
    neurons = [_Sum() for _ in units(model.config, "feed_forward")]
    stream = _Sum()

    def of_heads(unit: int, width: int):
        def hook(_: object, given: tuple[Tensor, ...]) -> None:
            x = given[0].float().unflatten(-1, (-1, width)).transpose(0, 1)  # (H, T, K)
            heads[unit].add(x.transpose(1, 2) @ x, x.shape[1])

        return hook

    def of_neurons(unit: int):
        def hook(_: object, given: tuple[Tensor, ...]) -> None:
            neurons[unit].add(given[0].float().square().sum(0), len(given[0]))

        return hook

    def of_stream(_: object, given: tuple[Tensor, ...]) -> None:
        squares = given[0].float().square()
        stream.add(squares.sum(0) / squares.mean().clamp_min(1e-30), len(squares))

    handles = [layer.register_forward_pre_hook(of_stream) for layer in model.encoder.layers]
    for unit, module in unit_modules(model, "attention"):
        assert isinstance(module, Attention)
        handles.append(module.output.register_forward_pre_hook(of_heads(unit, module.head_width)))
    for unit, module in unit_modules(model, "feed_forward"):
        assert isinstance(module, FeedForward)
        handles.append(module.down.register_forward_pre_hook(of_neurons(unit)))
    try:
        with freeze_weights(model), torch.no_grad():
            for batch in batches:
                stop()
                model(batch)
    finally:
        for handle in handles:
            handle.remove()
    return Moments([x.mean for x in heads], [x.mean for x in neurons], stream.mean)

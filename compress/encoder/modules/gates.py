"""Gates on heads, neurons and channels of the hidden states: 1 for what is as it is, 0 for what is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.layers import Attention, FeedForward
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import KeptUnits, unit_modules


@dataclass
class Widths:
    """A number for each head (H,) and each neuron (F,) of every unit, or for each of them in every row (B, ..)."""

    heads: list[Tensor]
    neurons: list[Tensor]

    @classmethod
    def ones(cls, config: EncoderConfig, rows: int | None = None, device: torch.device | str = "cpu") -> Widths:
        """rows: a number for each of so many rows; None: one for all."""
        lead = () if rows is None else (rows,)
        whole = KeptUnits.everything(config)
        made = [[torch.ones(*lead, len(n), device=device) for n in part] for part in (whole.heads, whole.neurons)]
        return cls(*made)

    @classmethod
    def of(cls, kept: KeptUnits, config: EncoderConfig) -> Widths:
        """1 for what stays of a model, 0 for what goes."""
        made = cls.ones(config)
        for gates, indices in zip(made.all, (*kept.heads, *kept.neurons), strict=True):
            stays = torch.zeros(len(gates), dtype=torch.bool)
            stays[list(indices)] = True
            gates[~stays] = 0
        return made

    @property
    def all(self) -> list[Tensor]:
        """Of the heads, then of the neurons."""
        return [*self.heads, *self.neurons]


@contextmanager
def apply_gates(model: Model, gates: Widths, batch: Batch | None = None) -> Iterator[None]:
    """Inside, what each head and each neuron gives is multiplied by its gate.

    gates: one for all rows, or for each row of `batch`, which the model must be called with then.
    """
    handles = []
    spread = _spreading(batch)

    def of_heads(gate: Tensor, width: int):
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
            return ((given[0].unflatten(-1, (-1, width)) * spread(gate)[..., None]).flatten(-2),)

        return hook

    def of_neurons(gate: Tensor):
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
            return (given[0] * spread(gate),)

        return hook

    try:
        for unit, module in unit_modules(model, "attention"):
            assert isinstance(module, Attention)
            handles.append(module.output.register_forward_pre_hook(of_heads(gates.heads[unit], module.head_width)))
        for unit, module in unit_modules(model, "feed_forward"):
            assert isinstance(module, FeedForward)
            handles.append(module.down.register_forward_pre_hook(of_neurons(gates.neurons[unit])))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def apply_stream_gates(model: Model, gate: Tensor, batch: Batch | None = None) -> Iterator[None]:
    """Inside, each channel of the hidden states is multiplied by its gate where a layer reads them, and at the end.

    gate: (D,), or (B, D) for each row of `batch`.
    """
    spread = _spreading(batch)

    def before(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (given[0] * spread(gate), *given[1:])

    def after(_: nn.Module, given: Any, output: EncoderOutput) -> EncoderOutput:
        output.last_hidden = output.last_hidden * spread(gate)
        return output

    handles = [layer.register_forward_pre_hook(before) for layer in model.encoder.layers]
    handles.append(model.encoder.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _spreading(batch: Batch | None) -> Callable[[Tensor], Tensor]:
    """A gate for each row → for each token of the batch; one for all stays."""

    def spread(gate: Tensor) -> Tensor:
        if gate.dim() == 1 or batch is None:
            return gate
        return torch.repeat_interleave(gate, batch.cu_seqlens.diff(), dim=0)

    return spread


@contextmanager
def freeze_weights(model: nn.Module) -> Iterator[None]:
    """Inside, no weight of the model asks for a gradient, and nothing is dropped."""
    asked = [p for p in model.parameters() if p.requires_grad]
    was = model.training
    model.requires_grad_(False).eval()
    try:
        yield
    finally:
        for parameter in asked:
            parameter.requires_grad_(True)
        model.train(was)

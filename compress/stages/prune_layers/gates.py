"""Gates on layers: x + g·(layer(x) − x); 1 keeps a layer, 0 removes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.modules.model import Model


@contextmanager
def apply_layer_gates(model: Model, gate: Callable[[int], Tensor]) -> Iterator[None]:
    """Inside, each layer of one forward pass goes through its gate.

    gate: number of the layer → a tensor that broadcasts with its output (T, D). A module that several layers share is
    called several times and has a gate for each.
    """
    calls = count()
    depth = model.config.depth

    def hook(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return given[0] + gate(next(calls) % depth) * (out - given[0])

    handles = [layer.register_forward_hook(hook) for layer in model.encoder.layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def row_gradients(model: Model, batch: Batch, loss: Callable[[EncoderOutput, Batch], Tensor]) -> Tensor:
    """(layers, B) derivative of the batch's summed loss by the gate of each layer in each row, all gates at 1."""
    gates = torch.ones(model.config.depth, batch.rows, device=batch.input_ids.device, requires_grad=True)
    lengths = batch.cu_seqlens.diff()
    with (
        torch.enable_grad(),
        apply_layer_gates(model, lambda layer: torch.repeat_interleave(gates[layer], lengths)[:, None]),
    ):
        total = loss(model(batch, Needs(logits=True)), batch)
        (found,) = torch.autograd.grad(total, gates)
    return found.detach()

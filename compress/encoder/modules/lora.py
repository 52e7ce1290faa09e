"""Low-rank adapters beside frozen linear layers, and their merge into the weights (LoRA, 2106.09685)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from compress.encoder.modules.dropout import Dropout
from compress.encoder.modules.layers import linear
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import SharedLinear


class Adapter(nn.Module):
    """x Aᵀ Bᵀ · alpha / r: what is added to x Wᵀ, (.., in) → (.., out).

    down: A (r, in), uniform within ±1/√in.  up: B (out, r), zero, so that the model starts with its own outputs.
    """

    def __init__(self, like: Tensor, rank: int, alpha: float, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        out, inputs = like.shape
        self.scale = alpha / rank
        self.down, self.up = linear(inputs, rank, bias=False), linear(rank, out, bias=False)
        self.dropout = Dropout(dropout)
        with torch.no_grad():
            drawn = torch.empty(rank, inputs, device="cpu").uniform_(-1, 1, generator=generator)
            self.down.weight.copy_(drawn / math.sqrt(inputs))
            self.up.weight.zero_()
        self.to(like.device)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(self.dropout(x))) * self.scale

    def difference(self) -> Tensor:
        """What the adapter adds to the matrix: (out, in), fp64."""
        return self.scale * (self.up.weight.double() @ self.down.weight.double())


class AdaptedLinear(nn.Module):
    """A linear layer and its adapter, which it shares with the layers that share its matrix."""

    def __init__(self, base: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.base, self.adapter = base, adapter

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.adapter(x)


def is_adaptable(module: nn.Module) -> bool:
    """Whether an adapter can be merged into this module: a linear layer with one float matrix."""
    return type(module) in (nn.Linear, SharedLinear)


def attach_adapters(
    model: Model,
    chosen: Callable[[str], bool],
    *,
    rank: int,
    alpha: float,
    dropout: float,
    generator: torch.Generator,
) -> None:
    """Give the linear layers of the encoder whose names `chosen` accepts an adapter each, in place.

    Layers with the same matrix have the same adapter: one merge changes it for all of them.
    """
    adapters: dict[int, Adapter] = {}
    for name, module in list(model.encoder.named_modules()):
        if not is_adaptable(module) or not chosen(name):
            continue
        weight: Any = module.weight
        if id(weight) not in adapters:
            adapters[id(weight)] = Adapter(weight, rank, alpha, dropout, generator)
        _replace(model.encoder, name, AdaptedLinear(module, adapters[id(weight)]))


def merge_adapters(model: Model) -> None:
    """Add every adapter to its matrix and take it out, in place: the model has its own modules again."""
    merged: set[int] = set()
    for name, module in list(model.encoder.named_modules()):
        if not isinstance(module, AdaptedLinear):
            continue
        weight: Any = module.base.weight
        if id(module.adapter) not in merged:
            merged.add(id(module.adapter))
            with torch.no_grad():
                weight.copy_(weight.double() + module.adapter.difference())
        _replace(model.encoder, name, module.base)


def _replace(root: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(root.get_submodule(parent), last, module)

"""Heads and feed-forward neurons taken out of an encoder, by index: what stays computes what it computed before.

A head that goes is a zero in the input of the attention's output matrix, a neuron one in the input of the second
feed-forward matrix. Gates (`gates`) say so and change no shape; `prune_units` removes the rows and columns, and answers
alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.unsupported import refuse_low_rank, refuse_quantized, refuse_sparse
from compress.encoder.modules.layers import Attention, FeedForward
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import part_of_layer, rebuild_model
from compress.errors import UserError

Indices = tuple[int, ...]
COUNTED = {"attention": "heads", "feed_forward": "feed_forward"}
"""Part of a layer → how its shape counts what can be taken out of it."""
OUTPUTS = {"attention": "output", "feed_forward": "down"}
"""Part of a layer → the matrix that its heads or neurons are the inputs of."""
RELATIVE = "relative"
"""Of a layer's attention: the table of its relative position biases."""


def units(config: EncoderConfig, part: str) -> tuple[Indices, ...]:
    """The layers of each set of matrices of a part ("attention" or "feed_forward"): one layer, or those that share."""
    groups = config.groups if config.sharing is None else config.sharing.groups(part)
    return tuple(tuple(i for i, g in enumerate(groups) if g == unit) for unit in range(max(groups) + 1))


@dataclass(frozen=True)
class KeptUnits:
    """What stays of each unit of the attention (heads) and of the feed-forward parts (neurons): indices, ascending."""

    heads: tuple[Indices, ...]
    neurons: tuple[Indices, ...]

    @classmethod
    def everything(cls, config: EncoderConfig) -> KeptUnits:
        """All that a model has."""
        heads = [config.layers[layers[0]].heads for layers in units(config, "attention")]
        neurons = [config.layers[layers[0]].feed_forward for layers in units(config, "feed_forward")]
        return cls(tuple(tuple(range(n)) for n in heads), tuple(tuple(range(n)) for n in neurons))

    def shape(self, config: EncoderConfig) -> EncoderConfig:
        """The config of what is left. Raises UserError for a unit that keeps nothing, or what is not there."""
        self._check(config)
        layers = list(config.layers)
        for (part, name), kept in zip(COUNTED.items(), (self.heads, self.neurons), strict=True):
            for unit, indices in zip(units(config, part), kept, strict=True):
                for layer in unit:
                    layers[layer] = dataclasses.replace(layers[layer], **{name: len(indices)})
        return dataclasses.replace(config, layers=tuple(layers))

    def _check(self, config: EncoderConfig) -> None:
        whole = KeptUnits.everything(config)
        for part, ours, theirs, what in (
            ("attention", self.heads, whole.heads, "head"),
            ("feed_forward", self.neurons, whole.neurons, "neuron"),
        ):
            for unit, kept, every in zip(units(config, part), ours, theirs, strict=True):
                where = f"layer {unit[0]}"
                if not kept:
                    raise UserError(f"no {what} would be kept", where=where, do="keep one, or drop the layer")
                if list(kept) != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= len(every):
                    why = f"allowed: 0..{len(every) - 1}, each once, in ascending order"
                    raise UserError(f"{what}s {list(kept)} cannot be kept", where=where, why=why)


def unit_modules(model: Model, part: str) -> list[tuple[int, Attention | FeedForward]]:
    """(unit, module) of every module of a part; layers that share matrices alone have modules of their own."""
    found = []
    for unit, layers in enumerate(units(model.config, part)):
        modules = [getattr(model.encoder.layers[model.config.groups[layer]], part) for layer in layers]
        found += [(unit, module) for module in dict.fromkeys(modules)]
    return found


def prune_units(model: Model, kept: KeptUnits) -> Model:
    """A model of what stays alone; nothing is shared with `model`. What layers share, they share still.

    Raises UserError for a part that keeps nothing, for a quantized model one of low rank and a 2:4 sparse one.
    """
    refuse_quantized(model.config, "cutting it", "width")
    refuse_low_rank(model.config, "cutting it", "width")
    refuse_sparse(model.config, "cutting it", "width")
    config = _give_layers_their_biases(kept, model.config)
    heads, neurons = _by_layer(model.config, kept)

    def tensor(layer: int, path: Sequence[str], last: str) -> Tensor:
        if path[-1] == RELATIVE:
            table = model.encoder.bias_table(model.config.groups[layer]).weight.detach()
            return table[:, torch.tensor(heads[layer], device=table.device)]
        found: Tensor = getattr(part_of_layer(model, layer, path), last)
        axis = inner_axis(path, last)
        if axis is None:
            return found
        shape = model.config.layers[layer]
        if path[0] == "attention":
            at = (torch.tensor(heads[layer])[:, None] * shape.head_width + torch.arange(shape.head_width)).flatten()
        else:
            at = torch.tensor(neurons[layer])
            if model.config.gated and path[1] == "up":  # what is activated, then what multiplies it
                at = torch.cat([at, at + shape.feed_forward])
        return found.detach().index_select(axis, at.to(found.device))

    return rebuild_model(model, config, tensor)


def _give_layers_their_biases(kept: KeptUnits, old: EncoderConfig) -> EncoderConfig:
    """The config of what is left; layers of which other heads are left no longer share a table of position biases."""
    config = kept.shape(old)
    if config.relative_bias is None or kept.heads == KeptUnits.everything(old).heads:
        return config
    return dataclasses.replace(config, relative_bias=dataclasses.replace(config.relative_bias, shared=False))


def inner_axis(path: Sequence[str], last: str) -> int | None:
    """The axis of a layer's tensor that runs over channels of heads, or neurons; None where none does."""
    if len(path) < 2:  # a norm
        return None
    if path[1] in OUTPUTS.values():
        return 1 if last in ("weight", "residual_down") else None
    return 0 if last in ("weight", "bias", "residual_up") else None


def _by_layer(config: EncoderConfig, kept: KeptUnits) -> tuple[list[Indices], list[Indices]]:
    found: tuple[list[Indices], list[Indices]] = ([()] * config.depth, [()] * config.depth)
    for place, (part, indices) in enumerate((("attention", kept.heads), ("feed_forward", kept.neurons))):
        for unit, chosen in zip(units(config, part), indices, strict=True):
            for layer in unit:
                found[place][layer] = chosen
    return found


__all__ = ["COUNTED", "OUTPUTS", "Indices", "KeptUnits", "prune_units", "inner_axis", "unit_modules", "units"]

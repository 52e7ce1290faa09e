"""Converts a trained encoder to cross-layer parameter sharing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from compress.contracts import LayerGroups, Member, SharedStart
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.sharing import NORMS, PARTS, Sharing, renumber_groups
from compress.encoder.config.unsupported import (
    refuse_dropped_tokens,
    refuse_global_projections,
    refuse_low_rank,
    refuse_quantized,
    refuse_sparse,
)
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import dense_weight
from compress.encoder.reshape.cut import RELATIVE
from compress.encoder.reshape.students import part_of_layer, rebuild_model
from compress.errors import UserError
from compress.stages.share.residuals import Factors, fit_residuals


@dataclass(frozen=True)
class LayerStatistics:
    """What was measured of the model on real input, by linear layer.

    inputs: (in+1, in+1) mean of [x 1]ᵀ[x 1].  fisher: of parameters, mean squared gradient.
    """

    inputs: Mapping[nn.Module, Tensor] = field(default_factory=dict)
    fisher: Mapping[nn.Parameter, Tensor] = field(default_factory=dict)


def refuse_shared(config: EncoderConfig, where: str) -> None:
    """Raise UserError for a model whose layers share already."""
    if config.sharing is None and config.layer_groups is None:
        return
    attention = config.groups if config.sharing is None else config.sharing.attention
    raise UserError(
        "this model already shares layers",
        where=where,
        why=f"its groups are {format_groups(LayerGroups(attention, _feed_forward(config)))}",
        do="convert its parent, or merge its groups further in a second share stage with reuse_input: true",
    )


def refuse_unshareable(config: EncoderConfig, where: str) -> None:
    """Raise UserError for a model whose matrices cannot be shared between layers."""
    doing = "sharing its layers"
    refuse_quantized(config, doing, where)
    refuse_global_projections(config, doing, where)
    refuse_low_rank(config, doing, where)
    refuse_sparse(config, doing, where)
    refuse_dropped_tokens(config, "sharing layers", where)


def refuse_own_biases(config: EncoderConfig, where: str) -> None:
    """Raise UserError for layers that each have relative position biases, which no start makes one of."""
    if config.relative_bias is not None and not config.relative_bias.shared:
        raise UserError(
            "each layer of this model has its own relative position biases",
            where=where,
            why="its attention heads were pruned, and layers with different heads cannot share them",
            do="share the layers of its parent, then prune its width",
        )


def check_joins(config: EncoderConfig, groups: LayerGroups, where: str) -> None:
    """Raise UserError unless every group of the model lies within one of `groups`."""
    before = LayerGroups(config.groups if config.sharing is None else config.sharing.attention, _feed_forward(config))
    for part in PARTS:
        old, new = getattr(before, part), getattr(groups, part)
        for group in set(old):
            layers = [layer for layer, g in enumerate(old) if g == group]
            if len({new[layer] for layer in layers}) > 1:
                raise UserError(
                    f"the pattern separates layers {', '.join(map(str, layers))}, which already share parameters",
                    where=where,
                    why=f"the model's groups are {format_groups(before)}, the pattern's {format_groups(groups)}",
                    do="use a pattern that merges whole groups",
                )


def _feed_forward(config: EncoderConfig) -> tuple[int, ...]:
    return config.groups if config.sharing is None else config.sharing.feed_forward


def format_groups(groups: LayerGroups) -> str:
    """The groups as people read them: `0-1 | 2-3`."""
    shown = {part: _told(getattr(groups, part)) for part in PARTS}
    if shown["attention"] == shown["feed_forward"]:
        return shown["attention"]
    return f"attention {shown['attention']}; feed-forward {shown['feed_forward']}"


def _told(groups: Sequence[int]) -> str:
    order = dict.fromkeys(groups)
    return " | ".join(" ".join(str(layer) for layer, g in enumerate(groups) if g == group) for group in order)


def unshare_layers(model: Model) -> Model:
    """The same function with layers of their own, residuals taken up; nothing is shared with `model`."""
    config = dataclasses.replace(model.config, sharing=None, layer_groups=None)

    def tensor(layer: int, path: Sequence[str], last: str) -> Tensor:
        module = part_of_layer(model, layer, path)
        return dense_weight(module) if last == "weight" else getattr(module, last)

    return rebuild_model(model, config, tensor)


def convert(
    model: Model,
    groups: LayerGroups,
    start: SharedStart,
    *,
    own_vectors: bool = True,
    residual_rank: int = 0,
    known: LayerStatistics | None = None,
) -> Model:
    """A model whose layers share as `groups` say; nothing is shared with `model`, whose layers are their own.

    known: what `start` reads; one that reads inputs is fitted together with the residuals. Computed in fp64. Raises
    UserError for layers of different shapes, and for a rank above the width.
    """
    known = known or LayerStatistics()
    sharing = Sharing(
        renumber_groups(groups.attention), renumber_groups(groups.feed_forward), own_vectors, residual_rank
    )
    config = dataclasses.replace(model.config, sharing=sharing)

    @functools.cache
    def fitted(part: str, name: str, first: int) -> tuple[Tensor, dict[int, Factors]]:
        """What a group shares (out, in or in+1), and each of its layers' residual."""
        members = [layer for layer, g in enumerate(sharing.groups(part)) if g == sharing.groups(part)[first]]
        modules = [part_of_layer(model, layer, (part, name)) for layer in members]
        found = [_member(module, known, bias=not own_vectors) for module in modules]
        if not residual_rank:
            return start(found), {}
        made, residuals = fit_residuals(start, found, modules[0].in_features, residual_rank)
        return made, dict(zip(members, residuals, strict=True))

    def tensor(layer: int, path: Sequence[str], last: str) -> Tensor:
        part = path[0] if path[0] in PARTS else next(p for p, norm in NORMS.items() if norm == path[0])
        module = part_of_layer(model, layer, path)
        first = sharing.owner(part, layer)
        if last.startswith("residual_"):
            assert first is not None
            return fitted(part, path[1], first)[1][layer][0 if last == "residual_up" else 1]
        if first is None or path[-1] == RELATIVE or (own_vectors and (last == "bias" or path[0] not in PARTS)):
            return getattr(module, last)
        if path[0] not in PARTS:  # a norm
            layers = [n for n, g in enumerate(sharing.groups(part)) if g == sharing.groups(part)[first]]
            norms = [_member(part_of_layer(model, n, path), known, bias=False, column=last) for n in layers]
            return start(norms)[:, 0]
        made, width = fitted(part, path[1], first)[0], module.in_features
        return made[:, width] if last == "bias" else made[:, :width]

    return rebuild_model(model, config, tensor)


def _member(module: Any, known: LayerStatistics, *, bias: bool, column: str | None = None) -> Member:
    """column: of a norm, the vector that is read."""
    names = [column] if column else ["weight"] + ["bias"] * (bias and module.bias is not None)
    parts = [getattr(module, name) for name in names]
    flat = [p.detach().double() if p.dim() == 2 else p.detach().double()[:, None] for p in parts]
    fisher = [known.fisher[p] for p in parts if p in known.fisher]
    seen = None if column else known.inputs.get(module)
    if seen is not None and len(names) == 1:
        seen = seen[:-1, :-1]
    shown = [f if f.dim() == 2 else f[:, None] for f in fisher]
    return Member(torch.cat(flat, 1).cpu(), seen, torch.cat(shown, 1) if len(shown) == len(parts) else None)

"""Replaces matrices of a trained encoder by low-rank factors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from compress.contracts import FactorMethod, Factors, MatrixStatistics
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import part_of_layer, rebuild_model
from compress.stages.factorize.allocation import Candidate, Ranks

Name = str
"""`0.attention.query`: of a group of layers (of a layer, where every one has its own), and its matrix."""


def matrices(model: Model) -> dict[Name, Any]:
    """Every matrix of the layers, once for layers of a group."""
    config = model.config
    shapes = [shape.sizes(config.hidden, gated=config.gated) for shape in config.group_shapes]
    return {
        f"{group}.{name}": part_of_layer(model, config.groups.index(group), name.split("."))
        for group, sizes in enumerate(shapes)
        for name in sizes
    }


def factorize_matrices(
    model: Model,
    method: FactorMethod,
    *,
    inputs: Mapping[nn.Module, Tensor],
    fisher: Mapping[nn.Parameter, Tensor],
    stop: Callable[[], None] = lambda: None,
) -> dict[Name, Factors]:
    """Of every matrix. inputs: (in+1, in+1) mean of [x 1]ᵀ[x 1].  fisher: of weights.  stop: may raise Stopped."""
    found = {}
    for name, part in matrices(model).items():
        stop()
        second = inputs.get(part)
        found[name] = method(
            MatrixStatistics(
                part.weight.detach().double().cpu(),
                None if second is None else second[:-1, :-1],
                None if second is None or part.bias is None else second[-1, :-1],
                fisher.get(part.weight),
            )
        )
    return found


def candidates(model: Model, found: Mapping[Name, Factors]) -> dict[Name, Candidate]:
    """What there is to choose from."""
    known = {name: found[name].values.numpy() for name in found}
    return {name: Candidate(p.out_features, p.in_features, known[name]) for name, p in matrices(model).items()}


def split(
    part: Any, factors: Factors, rank: int, inputs: Mapping[nn.Module, Tensor]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """outer (out, r), inner (r, in) and bias (out,) that stand for a linear layer, fp64."""
    outer, inner = factors.outer[:, :rank], factors.inner[:rank]
    if part.bias is None:
        return outer, inner, None
    bias = part.bias.detach().double().cpu()
    if factors.centred:
        bias = bias + (part.weight.detach().double().cpu() - outer @ inner) @ inputs[part][-1, :-1]
    return outer, inner, bias


def convert(model: Model, found: Mapping[Name, Factors], ranks: Ranks, inputs: Mapping[nn.Module, Tensor]) -> Model:
    """The model with these matrices as products; nothing is shared with `model`. Computed in fp64."""
    config = model.config
    shapes = [
        dataclasses.replace(
            shape,
            ranks=tuple((name, ranks[f"{group}.{name}"]) for name in shape.sizes(1) if f"{group}.{name}" in ranks),
        )
        for group, shape in zip(config.groups, config.layers, strict=True)
    ]
    made = dataclasses.replace(config, layers=tuple(shapes))

    def tensor(layer: int, path: Sequence[str], last: str) -> Tensor:
        *whole, side = path
        if side not in ("inner", "outer"):
            return getattr(part_of_layer(model, layer, path), last)
        name = f"{config.groups[layer]}.{'.'.join(whole)}"
        outer, inner, bias = split(part_of_layer(model, layer, whole), found[name], ranks[name], inputs)
        if last == "weight":
            return outer if side == "outer" else inner
        assert bias is not None
        return bias

    return rebuild_model(model, made, tensor)

"""A trained encoder into one whose matrices are 2:4 sparse, and what that does to their outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from compress.contracts import MatrixStatistics, SparseMethod
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.layer_shape import PATTERN
from compress.encoder.config.sparsity import MULTIPLE, can_be_sparse, list_sparse_matrices
from compress.encoder.config.unsupported import refuse_apart, refuse_low_rank, refuse_quantized, refuse_sparse
from compress.encoder.modules.masks import is_semi_structured
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import part_of_layer, rebuild_model
from compress.errors import UserError

Name = str
"""`0.attention.query`: of a group of layers (of a layer, where every one has its own), and its matrix."""


@dataclass(frozen=True)
class SparsifiedMatrix:
    """A matrix that became 2:4. weight: (out, in), bias: (out,), fp64.  error: mean square of what its outputs miss, a
    share of their variance."""

    weight: Tensor
    bias: Tensor | None
    error: float


def refuse(config: EncoderConfig, where: str) -> None:
    """Raise UserError for a model whose matrices cannot be made 2:4, or are already."""
    doing = "making them sparse"
    refuse_quantized(config, doing, where)
    refuse_low_rank(config, doing, where, "sparsify its parent instead: low-rank factors contain less redundancy")
    refuse_sparse(config, "sparsifying them again", where, "continue training it, or start from its parent")
    refuse_apart(config, where, "only the shared matrices would become sparse", "sparsify")
    if not any(list_sparse_matrices(shape, config.hidden, gated=config.gated) for shape in config.layers):
        sizes = sorted({size for shape in config.layers for size in _sizes(config, shape).values()})
        raise UserError(
            f"no matrix of this model supports {PATTERN} sparsity",
            where=where,
            why=f"torch's kernels need sizes divisible by {MULTIPLE}, found "
            + ", ".join(f"{out} x {inputs}" for out, inputs in sizes[:4]),
            do="use a model with other sizes",
        )


def left_dense(config: EncoderConfig) -> list[Name]:
    """Matrices that torch's kernels do not take."""
    return [
        f"{group}.{name}"
        for group, shape in enumerate(config.group_shapes)
        for name, (out, inputs) in _sizes(config, shape).items()
        if not can_be_sparse(out, inputs)
    ]


def sparsify_matrices(
    model: Model,
    method: SparseMethod,
    inputs: Mapping[nn.Module, Tensor],
    stop: Callable[[], None] = lambda: None,
    told: Callable[[int], None] = lambda done: None,
) -> dict[Name, SparsifiedMatrix]:
    """Every matrix that can be, once for layers of a group.

    inputs: (in+1, in+1) mean of [x 1]ᵀ[x 1].  stop: may raise Stopped.  told: of how many are done.
    """
    config, found = model.config, dict[Name, SparsifiedMatrix]()
    for group, shape in enumerate(config.group_shapes):
        for name in list_sparse_matrices(shape, config.hidden, gated=config.gated):
            stop()
            part = part_of_layer(model, config.groups.index(group), name.split("."))
            found[f"{group}.{name}"] = _cut(part, method, inputs[part])
            told(len(found))
    return found


def _cut(part: Any, method: SparseMethod, second: Tensor) -> SparsifiedMatrix:
    mean = second[:-1, -1]
    weight = part.weight.detach().double().cpu()
    made = method(MatrixStatistics(weight, second[:-1, :-1], None if part.bias is None else mean))
    assert is_semi_structured(made.weight)
    lost, covariance = weight - made.weight, second[:-1, :-1] - mean.outer(mean)
    read = covariance if made.centred else second[:-1, :-1]
    whole = float(((weight @ covariance) * weight).sum())
    error = float(((lost @ read) * lost).sum()) / whole if whole > 0 else 0.0
    bias = None if part.bias is None else part.bias.detach().double().cpu()
    if bias is not None and made.centred:
        bias = bias + lost @ mean
    return SparsifiedMatrix(made.weight, bias, error)


def convert(model: Model, cuts: Mapping[Name, SparsifiedMatrix]) -> Model:
    """The model with these matrices; nothing is shared with `model`."""
    config = model.config
    layers = tuple(
        dataclasses.replace(shape, sparse=tuple(name for name in shape.sizes(1) if f"{group}.{name}" in cuts))
        for group, shape in zip(config.groups, config.layers, strict=True)
    )

    def tensor(layer: int, path: Sequence[str], last: str) -> Tensor:
        made = cuts.get(f"{config.groups[layer]}.{'.'.join(path)}")
        if made is None:
            return getattr(part_of_layer(model, layer, path), last)
        found = made.weight if last == "weight" else made.bias
        assert found is not None
        return found

    return rebuild_model(model, dataclasses.replace(config, layers=layers), tensor)


def _sizes(config: EncoderConfig, shape: Any) -> dict[str, tuple[int, int]]:
    return shape.sizes(config.hidden, gated=config.gated)

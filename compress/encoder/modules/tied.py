"""Layers that share matrices: the tensors lie in the first layer of a group, and the others read them there.

A module that reads another's tensor has none of its own, so what is shared cannot come apart: not by training, not by
copying, moving or loading, and it is stored once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.contracts import LayerGroups
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.sharing import NORMS, PARTS
from compress.errors import UserError


class SharedLinear(nn.Module):
    """x Wᵀ + b + (x Dᵀ) Uᵀ: a linear layer whose W may be another's, with a residual U D of rank r of its own.

    owner: the module that holds W (out, in), None: this one does.  own_bias: whether b (out,) is this module's own.
    rank: r, 0 for no residual.  residual_down: D (r, in).  residual_up: U (out, r).  residual_scale: factor of the
    residual while it is shrunk (`scale_residuals`); a model that is saved has 1.
    """

    residual_scale = 1.0

    def __init__(
        self, like: nn.Linear, owner: nn.Module | None = None, *, own_bias: bool = True, rank: int = 0
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.rank = like.in_features, like.out_features, rank
        if owner is None:
            self.register_parameter("weight", _empty(like.weight))
        if owner is None or own_bias:
            self.register_parameter("bias", None if like.bias is None else _empty(like.bias))
        if rank:
            self.residual_down = _empty(like.weight, rank, like.in_features)
            self.residual_up = _empty(like.weight, like.out_features, rank)
        self._owner = (owner,)  # in a tuple: a module assigned directly would become a part of this one

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias") and name not in self._parameters:
            return getattr(self._owner[0], name)
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        made = F.linear(x, self.weight, self.bias)
        return made if self.rank == 0 else made + self.residual(x)

    def residual(self, x: Tensor) -> Tensor:
        """What this layer adds to the shared product: (.., in) → (.., out)."""
        made = F.linear(F.linear(x, self.residual_down), self.residual_up)
        return made if self.residual_scale == 1 else made * self.residual_scale


class TiedNorm(nn.Module):
    """A layer norm whose weight and bias (and eps) are another's."""

    def __init__(self, owner: nn.LayerNorm) -> None:
        super().__init__()
        self._owner = (owner,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner[0], name) if name in ("weight", "bias", "eps") else super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        return self._owner[0](x)


def _empty(like: Tensor, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape or like.shape, dtype=like.dtype, device=like.device))


def tie(layers: nn.ModuleList, config: EncoderConfig) -> None:
    """Make freshly built layers share, in place, what `config.sharing` says."""
    sharing = config.sharing
    if sharing is None:
        return
    for index, layer in enumerate(layers):
        for part, names in PARTS.items():
            first = sharing.owner(part, index)
            if first is None:
                continue
            module = getattr(layer, part)
            home = None if first == index else getattr(layers[first], part)
            for name in names:
                owner = None if home is None else getattr(home, name)
                made = SharedLinear(
                    getattr(module, name), owner, own_bias=sharing.own_vectors, rank=sharing.residual_rank
                )
                setattr(module, name, made)
            if home is not None and not sharing.own_vectors:
                setattr(layer, NORMS[part], TiedNorm(getattr(layers[first], NORMS[part])))


def dense_weight(linear: nn.Module) -> Tensor:
    """The matrix (out, in) that a linear layer computes with, its residual included."""
    weight: Any = linear.weight
    if isinstance(linear, SharedLinear) and linear.rank:
        return weight + linear.residual_scale * (linear.residual_up @ linear.residual_down)
    return weight


def scale_residuals(model: nn.Module, factor: float) -> None:
    """Multiply what each residual of `model` adds by `factor`, in place of the factor before; 0: as if it had none."""
    for module in model.modules():
        if isinstance(module, SharedLinear) and module.rank:
            module.residual_scale = factor


def measure_distances(layers: Sequence[Any], groups: LayerGroups) -> dict[tuple[str, tuple[int, ...]], Tensor]:
    """(part, layers of a group) → how far apart their matrices are, for every group of more than one layer.

    layers: a module for each layer.  Per matrix the sum over the layers of |W_l - mean|^2 over that of |W_l|^2, the
    mean over the part's matrices: 0 for equal layers, 1 - 1/n for n that have nothing in common. Has a gradient, but
    for the denominators: a distance does not fall because weights grow.
    """
    found = {}
    for part, names in PARTS.items():
        numbers = getattr(groups, part)
        for group in dict.fromkeys(numbers):
            members = tuple(layer for layer, number in enumerate(numbers) if number == group)
            if len(members) > 1:
                every = [[getattr(getattr(layers[n], part), name) for n in members] for name in names]
                found[part, members] = torch.stack([_spread(linears) for linears in every]).mean()
    return found


def _spread(linears: Sequence[nn.Module]) -> Tensor:
    weights = torch.stack([dense_weight(linear) for linear in linears])
    return (weights - weights.mean(0)).square().sum() / weights.detach().square().sum().clamp(min=1e-30)


def check_tied(model: nn.Module, expected: Collection[str], where: str) -> None:
    """Raise UserError unless `model` holds the tensors `expected`, those of the architecture built anew, and no others.

    A tensor too many is one that should be shared and is not: tied tensors that came apart.
    """
    ours, wanted = set(model.state_dict()), set(expected)
    apart = sorted(ours - wanted)
    if apart:
        raise UserError(
            f"'{apart[0]}' is not tied",
            where=where,
            why="the config shares this tensor between layers, but the model has separate tensors"
            + (f", {len(apart)} of them" if len(apart) > 1 else ""),
            do="create the model from its config and load the weights into it",
        )
    missing = sorted(wanted - ours)
    if missing:
        raise UserError(f"'{missing[0]}' is missing", where=where, why="the config requires it")

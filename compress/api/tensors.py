"""Pure functions on modules and tensors, for a training loop of your own: no files, no recipes, nothing in place.

A `Model` here is the network: `compress.load(...).torch_module`.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Literal, get_args

import torch
from torch import nn

from compress.contracts import LayerGroups, MatrixStatistics, Scheme
from compress.encoder.modules.layers import LowRankLinear
from compress.encoder.modules.model import Model, require_network
from compress.encoder.reshape.cut import KeptUnits, prune_units, units
from compress.encoder.reshape.indices import list_entries, row_numbers
from compress.encoder.reshape.students import take_layers
from compress.encoder.reshape.word_rows import keep_rows as keep_word_rows
from compress.errors import UserError, did_you_mean
from compress.quantizers._base import affine as affine_scheme
from compress.quantizers._base import symmetric as symmetric_scheme
from compress.quantizers._rounding import fake_quantize
from compress.stages.factorize.methods.svd import Method as Svd
from compress.stages.share.conversion import convert, refuse_own_biases, refuse_unshareable, unshare_layers
from compress.stages.share.starts.mean import Start as Mean

__all__ = [
    "Scheme",
    "affine_scheme",
    "factorize_linear",
    "fake_quantize",
    "keep_word_rows",
    "share_layers",
    "symmetric_scheme",
    "take_heads_and_neurons",
    "take_layers",
]

Parts = Literal["all", "attention", "feed_forward"]


def factorize_linear(linear: nn.Linear, rank: int) -> LowRankLinear:
    """The linear layer as two low-rank factors by truncated singular value decomposition, with the same bias.

    linear: weight (out, in).  rank: 1 to min(out, in); `rank * (in + out)` numbers take the place of `in * out`.
    Computed in fp64, returned in the layer's dtype and on its device. Raises UserError for any other rank or
    layer, and for a weight that is not finite.
    """
    if not isinstance(linear, nn.Linear):
        raise UserError(
            f"this is no torch.nn.Linear, but an object of the type {type(linear).__name__}", where="linear",
            do="give a linear layer",
        )  # fmt: skip
    outputs, inputs = linear.weight.shape
    if not isinstance(rank, Integral) or not 1 <= rank <= min(outputs, inputs):
        raise UserError(f"rank {rank} is not possible", where="rank", why=f"allowed: 1..{min(outputs, inputs)}")
    if not bool(torch.isfinite(linear.weight).all()):
        raise UserError("the weight contains NaN or infinite values", where="linear")
    factors = Svd()(MatrixStatistics(linear.weight.detach().double().cpu(), None, None, None))
    made = LowRankLinear(inputs, outputs, rank, linear.bias is not None).to_empty(device=linear.weight.device)
    made = made.to(linear.weight.dtype)
    with torch.no_grad():
        made.inner.weight.copy_(factors.inner[:rank])
        made.outer.weight.copy_(factors.outer[:, :rank])
        if linear.bias is not None:
            made.outer.bias.copy_(linear.bias)
    return made.train(linear.training)


def take_heads_and_neurons(
    model: Model, heads: Sequence[Sequence[int]] | None = None, neurons: Sequence[Sequence[int]] | None = None
) -> Model:
    """A model with only these attention heads and feed-forward neurons; nothing is shared with `model`.

    heads, neurons: for each layer the indices that stay, ascending; None: all.  Of layers that share parameters, one
    list for each set of parameters. Raises UserError for a layer that keeps nothing, for indices out of range, and for
    what is no list.
    """
    require_network(model)
    whole = KeptUnits.everything(model.config)
    chosen: dict[str, tuple[tuple[int, ...], ...]] = {}
    for what, part, given in (("heads", "attention", heads), ("neurons", "feed_forward", neurons)):
        if given is None:
            chosen[what] = getattr(whole, what)
            continue
        expected, lists = len(units(model.config, part)), list_entries(given, what)
        if len(lists) != expected:
            raise UserError(f"{len(lists)} lists of {what} for {expected} layers", where=what, do="give one per layer")
        chosen[what] = tuple(tuple(row_numbers(one, f"{what}[{i}]").tolist()) for i, one in enumerate(lists))
    return prune_units(model, KeptUnits(**chosen))


def share_layers(model: Model, groups: Sequence[int], *, parts: Parts = "all",
                 share_norms_and_biases: bool = False, residual_rank: int = 0) -> Model:  # fmt: skip
    """A model in which layers of a group share their matrices, which start as the mean of the layers.

    groups: for each layer the number of its group: [0, 0, 1, 1]; the layers of a model that shares some already are
    grouped anew.  parts: which matrices are shared.
    residual_rank: of a low-rank matrix that each layer adds to the shared one; 0: none.
    Raises UserError for groups that are no list, for layers of different shapes, for a rank above the width, and for a
    quantized model, one of low rank and a 2:4 sparse one.
    """
    require_network(model)
    groups = list_entries(groups, "groups")
    if parts not in get_args(Parts):
        known = did_you_mean(str(parts), get_args(Parts))
        raise UserError(f"{parts!r} is not a part of a layer", where="parts", do=known)
    if len(groups) != model.config.depth:
        raise UserError(
            f"{len(groups)} groups for {model.config.depth} layers", where="groups", do="give one per layer"
        )
    refuse_unshareable(model.config, "model")
    refuse_own_biases(model.config, "model")
    if model.config.sharing is not None or model.config.layer_groups is not None:
        model = unshare_layers(model)
    own = tuple(range(model.config.depth))
    chosen = [tuple(groups) if parts in ("all", part) else own for part in ("attention", "feed_forward")]
    return convert(
        model,
        LayerGroups(*chosen),
        Mean(),
        own_vectors=not share_norms_and_biases,
        residual_rank=residual_rank,
    )

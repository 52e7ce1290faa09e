"""A model of the same layers made narrower: fewer channels between the layers, fewer or narrower heads, smaller
feed-forward parts, narrower embedding tables, all of it taken from the wider model.

The hidden states of all layers live in one residual stream, so one matrix P (D, d) with orthonormal columns narrows all
of them: what reads the stream becomes W P, what writes to it Pᵀ W, and the student's states begin near Pᵀ x. Methods
differ in P, and in what they keep inside heads and feed-forward parts (`narrowlayers`):

selection   P picks channels, evenly spaced; heads, their channels and neurons likewise: weight selection with uniform
            elements (Xu et al., "Initializing Models with Larger Ones", arXiv 2311.18823). Every weight is one of the
            wider model's.
svd         P spans the leading principal directions of the hidden states on real input, as SliceGPT slices a model
            (Ashkboos et al., arXiv 2401.15024), with one basis for all layers, so that the shape stays a common one.
            Inside a head the products QᵀK and VO are cut by truncated SVD; of heads and neurons those are kept that
            matter most on that input, and what reads them is fitted anew by least squares.
projection  P is a random matrix with orthonormal columns, which keeps distances between states in expectation whatever
            the data are (Johnson and Lindenstrauss 1984). Channels of a head likewise; heads and neurons are spaced
            evenly.

What stays approximate: a norm multiplies each channel by a gain of its own, which a rotation does not commute with, and
centres over the channels that there are. The masked-LM head's transform is turned as if its activation were linear.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.unsupported import refuse_global_projections, refuse_low_rank, refuse_quantized
from compress.encoder.infer.statistics import Statistics
from compress.encoder.modules.layers import EncoderLayer
from compress.encoder.modules.model import Model
from compress.encoder.reshape import narrow_heads, narrow_layers
from compress.encoder.reshape.basis import Basis, Method, copy_plain, space_evenly
from compress.encoder.reshape.narrow_method import Narrowing
from compress.errors import UserError


def narrow(
    model: Model,
    config: EncoderConfig,
    method: Method,
    *,
    seed: int = 0,
    statistics: Statistics | None = None,
) -> Model:
    """A model of shape `config` with the layers of `model`, narrowed by `method`; nothing is shared with it.

    config: that of `model` but for hidden, embedding and the shapes of the layers, none of which may be larger, and for
    fixed positions, which become learned.  seed: of projection's random matrices.  statistics: of `model`, for svd.
    Where a width stays, so do its channels, to the bit. Raises UserError for a width above the model's.
    """
    check_narrower(model.config, config)
    refuse_quantized(model.config, "narrowing it", "student")
    refuse_low_rank(model.config, "narrowing it", "student")
    how = Narrowing(method, torch.Generator().manual_seed(seed), statistics)
    second = None if statistics is None else statistics.stream
    stream = how.basis(model.config.hidden, config.hidden, second, _gains(model))
    tables = _table_basis(model, config, how, stream)
    with torch.device("meta"):
        heads = model.head_configs
        if config.hidden != model.config.hidden:
            heads = {name: head.fit_hidden(config.hidden) for name, head in heads.items()}
        student = Model(config, heads)
    state = _at("encoder.embeddings", _embeddings(model, config, how, stream, tables))
    for number, layer in enumerate(model.encoder.layers):
        assert isinstance(layer, EncoderLayer)
        made = narrow_layers.layer(layer, config.group_shapes[number], how, stream, model.config)
        state |= _at(f"encoder.layers.{number}", made)
    if model.encoder.final_norm is not None:
        state |= _at("encoder.final_norm", how.norm(stream, model.encoder.final_norm))
    state |= _relative(model, config, how, stream)
    state |= narrow_heads.heads(model, stream, tables, even=method == "selection")
    like = model.encoder.embeddings.word.weight
    # Every tensor of its own: what was not narrowed may still be the wider model's.
    whole = {name: state[name].to(like.device, like.dtype, copy=True).contiguous() for name in student.state_dict()}
    student.load_state_dict(whole, assign=True)
    return student.requires_grad_(True).train(model.training)


def check_narrowable(config: EncoderConfig) -> None:
    """Raise UserError for layers that share some of their matrices and not all, and for global projections."""
    refuse_global_projections(config, "making it narrower", "student")
    if config.sharing is not None:
        raise UserError(
            "this model's layers share matrices",
            where="student",
            why="only layers with their own matrices can be narrowed",
            do="narrow it before sharing its layers, or use init: random",
        )


def check_narrower(ours: EncoderConfig, wanted: EncoderConfig) -> None:
    """Raise UserError unless every width of `wanted` is at most that of `ours`, and the model can be narrowed."""
    check_narrowable(ours)
    found = [("hidden", "hidden", wanted.hidden, ours.hidden), ("embedding", "embedding", wanted.width, ours.width)]
    for index, (new, old) in enumerate(zip(wanted.layers, ours.layers, strict=True)):
        found.append(("heads", f"the heads of layer {index}", new.heads, old.heads))
        found.append(("heads", f"the width of a head of layer {index}", new.head_width, old.head_width))
        found.append(
            ("intermediate_size", f"the intermediate size of layer {index}", new.feed_forward, old.feed_forward)
        )
    for key, what, new, old in found:
        if new <= old:
            continue
        advice = f"use {old} or less, init: random, or a wider checkpoint as model"
        if what.startswith("the width of a head"):
            advice = f"use more heads; or list the heads of each layer, whose width then remains {old}"
        raise UserError(
            f"{what} would be {new}, but the weights are copied from one of {old}",
            where=f"student.{key}",
            why="a student cannot be wider than the model that initializes it",
            do=advice,
        )


def _gains(model: Model) -> Tensor:
    """(norms, D) of the norms over the stream."""
    encoder = model.encoder
    norms = [norm for layer in encoder.layers for norm in (layer.attention_norm, layer.output_norm)]
    wide = model.config.project_first or model.config.width == model.config.hidden
    norms += [encoder.embeddings.norm if wide else None, encoder.final_norm]
    return torch.stack([copy_plain(norm.weight) for norm in norms if isinstance(norm, nn.LayerNorm)])


def _table_basis(model: Model, config: EncoderConfig, how: Narrowing, stream: Basis) -> Basis:
    """Of the embedding tables' channels: those of the stream, where the tables are as wide as it before and after."""
    old, new = model.config.width, config.width
    if old == model.config.hidden and new == config.hidden:
        return stream
    source = model.encoder.embeddings
    if source.project_first:  # no norm over the tables' channels
        table = copy_plain(source.word.weight)
        return how.basis(old, new, table.T @ table)
    assert source.norm is not None, "a static model has no channels to remove"
    known = None if how.statistics is None else how.statistics.outputs[source.norm][:-1, :-1]
    return how.basis(old, new, known, copy_plain(source.norm.weight)[None])


def _relative(model: Model, config: EncoderConfig, how: Narrowing, stream: Basis) -> dict[str, Tensor]:
    """The position biases that layers share, of the heads that stay, or the vectors of distances that layers read as
    they do the stream."""
    encoder, state = model.encoder, dict[str, Tensor]()
    if encoder.relative is not None and config.relative_bias is not None and config.relative_bias.shared:
        table = copy_plain(encoder.relative.weight)
        state["encoder.relative.weight"] = table[:, space_evenly(table.shape[1], config.layers[0].heads)]
    if encoder.distances is not None:
        state["encoder.distances.weight"] = stream.read(copy_plain(encoder.distances.weight))
        if encoder.distances.norm is not None:
            state |= _at("encoder.distances.norm", how.norm(stream, encoder.distances.norm))
    return state


def _at(prefix: str, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in parts.items()}


def _embeddings(model: Model, config: EncoderConfig, how: Narrowing, stream: Basis, tables: Basis) -> dict[str, Tensor]:
    source = model.encoder.embeddings
    assert source.norm is not None, "a static model has no channels to remove"
    state = {"word.weight": tables.read(copy_plain(source.word.weight))}
    for name in ("position", "segment"):
        table = getattr(source, name)
        if table is not None:
            state[f"{name}.weight"] = tables.read(copy_plain(table.weight))
    state |= _at("norm", how.norm(stream if source.project_first else tables, source.norm))
    if config.width == config.hidden:
        return state
    weight = torch.eye(model.config.hidden, dtype=torch.float64)
    bias = None
    if source.projection is not None:
        weight, bias = copy_plain(source.projection.weight), source.projection.bias
    state["projection.weight"] = stream.write(tables.read(weight))
    if config.bias:
        state["projection.bias"] = stream.write(torch.zeros(len(weight)).double() if bias is None else copy_plain(bias))
    return state

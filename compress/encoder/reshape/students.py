"""A smaller model out of a larger one: the layers that a map names, copied (DistilBERT, 1910.01108)."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal, cast

import torch

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.sharing import PARTS, Sharing, renumber_groups
from compress.encoder.config.unsupported import refuse_quantized
from compress.encoder.modules.model import Model, require_network
from compress.encoder.modules.tied import dense_weight
from compress.encoder.reshape.indices import list_entries
from compress.errors import UserError, did_you_mean

Segments = Literal["keep", "drop", "fold"]


def take_layers(
    model: Model,
    keep: Sequence[int],
    heads: Iterable[str] | None = None,
    *,
    segments: Segments = "keep",
    pooler: bool = True,
) -> Model:
    """A model of the layers `keep` of `model`, with copies of its embeddings, pooler and heads; nothing is shared.

    keep: layer indices, ascending.  heads: names of the heads to carry over; None: all.
    segments: what becomes of the segment table: "keep"; "drop" (as the DistilBERT code does); "fold": the first
        segment's row is added to every position, so that single sentences embed exactly as in `model`.
    pooler: False leaves the pooler out.
    Layers that shared parameters still do.
    Raises UserError for what is no network or no list, and for an index that is out of range, repeated or out of order.
    """
    require_network(model)
    keep = list_entries(keep, "keep")
    check_layer_map(keep, model.config.depth)
    refuse_quantized(model.config, "cutting it", "layers")
    carried = _carried(model, heads)
    config, groups = _student_config(model.config, keep, segments, pooler)
    with torch.device("meta"):
        student = Model(config, carried)
    state = {}
    names = student.state_dict().keys()
    for name in names:
        state[name] = _source(model, name, groups, names).detach().clone()
    if segments == "fold" and model.encoder.embeddings.segment is not None:
        state["encoder.embeddings.position.weight"] += model.encoder.embeddings.segment.weight[0].detach()
    student.load_state_dict(state, assign=True)
    student.requires_grad_(True)
    return student.train(model.training)


def check_layer_map(keep: Sequence[int], depth: int, where: str = "layers") -> None:
    """Raise UserError unless `keep` names layers of a `depth`-layer model, each once, in ascending order."""
    legal = f"allowed: 0..{depth - 1}"
    if not keep:
        raise UserError("no layer is kept", where=where, why=legal)
    for index in keep:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < depth:
            raise UserError(f"layer {index!r} does not exist", where=where, why=legal)
    repeated = sorted({i for i in keep if list(keep).count(i) > 1})
    if repeated:
        raise UserError(f"layer {repeated[0]} is listed twice", where=where, why=legal, do=f"use {sorted(set(keep))}")
    if list(keep) != sorted(keep):
        raise UserError(f"layers {list(keep)} are out of order", where=where, why=legal, do=f"use {sorted(keep)}")


def _carried(model: Model, heads: Iterable[str] | None) -> dict[str, HeadConfig]:
    if heads is None:
        return dict(model.head_configs)
    carried = {}
    for name in heads:
        if name not in model.head_configs:
            raise UserError(f"the model has no '{name}' head", where="heads", do=did_you_mean(name, model.head_configs))
        carried[name] = copy.copy(model.head_configs[name])
    return carried


def _student_config(
    config: EncoderConfig, keep: Sequence[int], segments: Segments, pooler: bool
) -> tuple[EncoderConfig, list[int]]:
    """The student's config, and for each of its parameter groups the group it comes from."""
    source: list[int] = []
    renumbered = []
    for layer in keep:
        group = config.groups[layer]
        if group not in source:
            source.append(group)
        renumbered.append(source.index(group))
    shared = len(source) < len(renumbered)
    if segments == "fold" and config.positions in ("sinusoidal", "rotary", "none") and config.segments:
        raise UserError(
            "the segment embedding cannot be folded into fixed positions", where="segments", do="use keep or drop"
        )
    windows = tuple(config.windows[i] for i in keep) if config.windows else None
    local = windows is not None and any(window is not None for window in windows)
    return dataclasses.replace(
        config,
        layers=tuple(config.layers[i] for i in keep),
        windows=windows if local else None,
        global_tokens=config.global_tokens if local else 0,
        layer_groups=tuple(renumbered) if shared else None,
        sharing=_sharing(config.sharing, keep),
        first_norm=config.first_norm or keep[0] > 0,
        rotary_bases=tuple(config.rotary_bases[i] for i in keep) if config.rotary_bases else None,
        segments=config.segments if segments == "keep" else 0,
        pooler=config.pooler and pooler,
        kept_tokens=None,  # they were chosen for other layers
    ), source


def _sharing(sharing: Sharing | None, keep: Sequence[int]) -> Sharing | None:
    """What is still shared by the layers that are kept."""
    if sharing is None:
        return None
    chosen = {part: renumber_groups([sharing.groups(part)[i] for i in keep]) for part in PARTS}
    return dataclasses.replace(sharing, **chosen)


def _source(model: Model, name: str, groups: Sequence[int], names: Collection[str]) -> torch.Tensor:
    """The tensor of `model` that the student's tensor `name`, one of `names`, starts from."""
    prefix = "encoder.layers."
    if name.startswith(prefix):
        index, rest = name[len(prefix) :].split(".", 1)
        # Read from the layer, not by the tensor's name: what layers share has the name of the first of them alone.
        *path, last = rest.split(".")
        module = functools.reduce(getattr, path, cast(Any, model.encoder.layers[groups[int(index)]]))
        if last == "weight" and name.replace("weight", "residual_up") not in names:
            return dense_weight(module)  # shared with nobody any more, it takes up its residual
        return getattr(module, last)
    return model.get_parameter(name) if name in dict(model.named_parameters()) else model.get_buffer(name)


def rebuild_model(
    model: Model, config: EncoderConfig, tensor: Callable[[int, Sequence[str], str], torch.Tensor]
) -> Model:
    """A model of shape `config`, which differs from that of `model` in what its layers share: their tensors are
    asked for by layer, module path and name, all others copied; nothing is shared with `model`."""
    with torch.device("meta"):
        made = Model(config, model.head_configs)
    whole = config.layer_groups  # one module for each group, where layers are alike in everything
    prefix, old, state = "encoder.layers.", model.state_dict(), dict[str, torch.Tensor]()
    like = model.encoder.embeddings.word.weight
    for name in made.state_dict():
        found = old.get(name)
        if name.startswith(prefix):
            place, *path, last = name.removeprefix(prefix).split(".")
            layer = int(place) if whole is None else whole.index(int(place))
            found = tensor(layer, path, last)
        assert found is not None
        state[name] = found.detach().to(like.device, like.dtype, copy=True).contiguous()
    made.load_state_dict(state, assign=True)
    return made.requires_grad_(True).train(model.training)


def part_of_layer(model: Model, layer: int, path: Sequence[str]) -> Any:
    """The module at `path` in a layer, whichever group holds it."""
    return functools.reduce(getattr, path, cast(Any, model.encoder.layers[model.config.groups[layer]]))


def remove_residuals(model: Model) -> Model:
    """The model that shares as `model` does and adds nothing to it; nothing is shared with `model`."""
    sharing = model.config.sharing
    assert sharing is not None
    config = dataclasses.replace(model.config, sharing=dataclasses.replace(sharing, residual_rank=0))
    return rebuild_model(model, config, lambda layer, path, last: getattr(part_of_layer(model, layer, path), last))

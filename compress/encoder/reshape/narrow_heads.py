"""The pooler and the heads of a narrower model: neurons behind a non-linear function are kept or left out whole."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from compress.encoder.modules.heads import (
    DenseHead,
    EmbeddingHead,
    FirstTokenHead,
    MaskedLMHead,
    PooledHead,
    ReplacedTokenHead,
    TokenHead,
    TransformedHead,
)
from compress.encoder.modules.model import Model
from compress.encoder.reshape.basis import Basis, copy_plain, space_evenly


def heads(model: Model, stream: Basis, tables: Basis, *, even: bool) -> dict[str, Tensor]:
    """name → tensor of the pooler and all heads. even: neurons evenly spaced; else those that count most after them."""
    state: dict[str, Tensor] = {}
    pooled = [h.classifier.weight for h in model.heads.values() if isinstance(h, PooledHead)]
    kept = _neurons(stream, pooled, even)
    if model.encoder.pooler is not None:
        state |= _dense("encoder.pooler.dense", model.encoder.pooler.dense, stream, kept)
    for name, head in model.heads.items():
        state |= _head(f"heads.{name}", head, stream, tables, kept, even)
    return state


def _head(at: str, head: nn.Module, stream: Basis, tables: Basis, pooled: Tensor, even: bool) -> dict[str, Tensor]:
    if isinstance(head, PooledHead):
        return _last(f"{at}.classifier", head.classifier, copy_plain(head.classifier.weight)[:, pooled])
    if isinstance(head, TokenHead):
        return _last(f"{at}.classifier", head.classifier, stream.read(copy_plain(head.classifier.weight)))
    if isinstance(head, EmbeddingHead):
        state = {f"{at}.{name}": copy_plain(value) for name, value in head.state_dict().items()}
        first = f"{at}.denses.0.weight"
        return state | ({first: stream.read(state[first])} if first in state else {})
    if isinstance(head, MaskedLMHead):
        # Its outputs are compared with the word table, at once or projected, so they must be turned as it is.
        tables = stream if head.tied_projection else tables
        bias = {} if head.dense.bias is None else {f"{at}.dense.bias": tables.write(copy_plain(head.dense.bias))}
        norm = {f"{at}.norm.{part}": value for part, value in tables.norm(head.norm).items()}
        weight = tables.write(stream.read(copy_plain(head.dense.weight)))
        return {f"{at}.dense.weight": weight, **bias, **norm, f"{at}.bias": copy_plain(head.bias)}
    assert isinstance(head, FirstTokenHead | DenseHead | TransformedHead | ReplacedTokenHead)
    kept = _neurons(stream, [head.classifier.weight], even)
    first = "pre_classifier" if isinstance(head, FirstTokenHead) else "dense"
    state = _dense(f"{at}.{first}", getattr(head, first), stream, kept)
    if isinstance(head, TransformedHead):
        state |= {f"{at}.norm.{part}": copy_plain(value)[kept] for part, value in head.norm.named_parameters()}
    return state | _last(f"{at}.classifier", head.classifier, copy_plain(head.classifier.weight)[:, kept])


def _neurons(stream: Basis, readers: list[Tensor], even: bool) -> Tensor:
    """(d,) of the D neurons: as many as there are channels."""
    if stream.chosen is not None and (even or len(stream.chosen) == len(stream.matrix)):
        return stream.chosen
    return select_most_read([copy_plain(weight) for weight in readers], *stream.matrix.shape)


def select_most_read(readers: list[Tensor], old: int, new: int) -> Tensor:
    """(new,) of `old` neurons, ascending: those that the matrices (.., old) weigh most; else evenly spaced."""
    if not readers:
        return space_evenly(old, new)
    size = torch.stack([weight.square().sum(0) for weight in readers]).sum(0)
    return size.argsort(descending=True, stable=True)[:new].sort().values


def _dense(at: str, layer: nn.Linear, stream: Basis, kept: Tensor) -> dict[str, Tensor]:
    """Reads the stream, writes neurons."""
    state = {f"{at}.weight": stream.read(copy_plain(layer.weight))[kept]}
    return state if layer.bias is None else state | {f"{at}.bias": copy_plain(layer.bias)[kept]}


def _last(at: str, layer: nn.Linear, weight: Tensor) -> dict[str, Tensor]:
    return {f"{at}.weight": weight, f"{at}.bias": copy_plain(layer.bias)}

"""Tiny configs and batches for the encoder's tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compress.contracts import Batch, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.relative import Disentangled, RelativeBias
from compress.encoder.config.sharing import Sharing
from compress.encoder.modules.model import Model

EVERYTHING = Needs(True, True, True, True, True, True, True, "all")

UNIFORM = EncoderConfig.uniform(
    vocabulary=50, hidden=16, layers=3, heads=4, feed_forward=24, max_positions=64, norm_eps=1e-6
)
"""What the variations below vary. The published 1e-12 would drown in fp32's rounding on random tiny weights."""

LOW = (("attention.key", 3), ("attention.output", 2), ("feed_forward.up", 5), ("feed_forward.down", 4))
VARIATIONS: dict[str, EncoderConfig] = {
    "bert": UNIFORM,
    "pre-norm": dataclasses.replace(UNIFORM, norm="pre"),
    "uneven": dataclasses.replace(UNIFORM, layers=(LayerShape(4, 4, 24), LayerShape(1, 4, 5), LayerShape(3, 6, 40))),
    "factorized": dataclasses.replace(UNIFORM, embedding=8),
    "shared": dataclasses.replace(UNIFORM, layer_groups=(0, 1, 0)),
    "low rank": dataclasses.replace(UNIFORM, layers=(LayerShape(4, 4, 24, LOW), *UNIFORM.layers[1:])),
    "low rank, gated, shared": dataclasses.replace(
        UNIFORM, norm="pre", bias=False, gated=True, layers=(LayerShape(4, 4, 24, LOW),) * 3, layer_groups=(0, 1, 0)
    ),
    "sinusoidal": dataclasses.replace(UNIFORM, positions="sinusoidal"),
    "sinusoidal_start": dataclasses.replace(UNIFORM, positions="sinusoidal_start", activation="gelu_new"),
    "offset": dataclasses.replace(UNIFORM, position_offset=2, pad_id=1, segments=1, activation="silu"),
    "distilbert": dataclasses.replace(UNIFORM, segments=0, pooler=False, activation="relu"),
    "roberta": dataclasses.replace(UNIFORM, position_offset=2, pad_id=1, segments=1, pooler=False),
    "rotary": dataclasses.replace(
        UNIFORM, positions="rotary", rotary_bases=(100.0, 10.0, 100.0), gated=True, segments=0, pooler=False
    ),
    "mpnet": dataclasses.replace(UNIFORM, relative_bias=RelativeBias(8, 16), segments=0, pooler=False),
    "deberta": dataclasses.replace(
        UNIFORM, positions="none", disentangled=Disentangled(8, 20, norm=True), segments=0, pooler=False
    ),
    "distances beside positions": dataclasses.replace(
        UNIFORM,
        layers=(LayerShape(4, 4, 24), LayerShape(1, 4, 5), LayerShape(3, 6, 40)),
        disentangled=Disentangled(12, position_to_content=False),
    ),
    "biases of their own": dataclasses.replace(
        UNIFORM,
        layers=(LayerShape(4, 4, 24), LayerShape(1, 4, 5), LayerShape(3, 6, 40)),
        relative_bias=RelativeBias(8, 16, shared=False),
    ),
    "modernbert": dataclasses.replace(
        UNIFORM,
        norm="pre",
        first_norm=False,
        bias=False,
        gated=True,
        positions="rotary",
        rotary_bases=(100.0, 10.0, 10.0),
        windows=(None, 4, 4),
        segments=0,
        pooler=False,
    ),
    "nomic": dataclasses.replace(
        UNIFORM, linear_bias=False, gated=True, activation="silu", positions="rotary", rotary_bases=(20.0,) * 3
    ),
    "gte": dataclasses.replace(
        UNIFORM, gate_bias=False, gated=True, segments=1, positions="rotary", rotary_bases=(20.0,) * 3
    ),
}
RELAXED: dict[str, EncoderConfig] = {
    "own vectors": dataclasses.replace(UNIFORM, sharing=Sharing((0, 0, 1), (0, 0, 1))),
    "attention": dataclasses.replace(UNIFORM, sharing=Sharing((0, 0, 0), (0, 1, 2), own_vectors=False)),
    "feed-forward": dataclasses.replace(UNIFORM, norm="pre", sharing=Sharing((0, 1, 2), (0, 1, 0))),
    "residuals": dataclasses.replace(UNIFORM, sharing=Sharing((0, 0, 0), (0, 0, 0), residual_rank=3)),
    "residuals alone": dataclasses.replace(UNIFORM, sharing=Sharing((0, 1, 0), (0, 1, 0), False, 2)),
    "gated": dataclasses.replace(
        VARIATIONS["modernbert"], sharing=Sharing((0, 0, 0), (0, 0, 1), own_vectors=True, residual_rank=2)
    ),
    "projected first": dataclasses.replace(UNIFORM, embedding=8, project_first=True),
    "all of it": dataclasses.replace(
        UNIFORM, embedding=8, project_first=True, sharing=Sharing((0, 0, 0), (0, 0, 1), residual_rank=1)
    ),
}
"""Layers that share matrices alone, and embeddings that are projected before their norm."""
STYLES = {"roberta": "roberta", "deberta": "deberta", "rotary": "electra", "modernbert": "modernbert"}


def heads(config: EncoderConfig) -> dict[str, HeadConfig]:
    """Every head that this encoder can carry."""
    if not config.pooler:
        plain = dataclasses.replace(config, sharing=None)
        style: Any = next((STYLES[name] for name in STYLES if VARIATIONS[name] == plain), "distilbert")
        pooling = "mean" if style == "modernbert" else "first"
        chosen = [HeadConfig("masked_lm"), HeadConfig("classification", labels=3, style=style, pooling=pooling)]
    else:
        mlm = HeadConfig("masked_lm", tied_projection=config.project_first)
        chosen = [mlm, HeadConfig("classification", labels=3), HeadConfig("sentence_pair")]
    return {head.name: head for head in chosen}


def model(config: EncoderConfig, seed: int = 0) -> Model:
    """With all heads, in evaluation mode, weights large enough that nothing is nearly linear, biases not zero."""
    built = Model(config, heads(config)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return built


def needs(config: EncoderConfig) -> Needs:
    return EVERYTHING if config.pooler else dataclasses.replace(EVERYTHING, pooled=False, pair_logits=False)


def batch(lengths: Sequence[int], config: EncoderConfig = UNIFORM, seed: int = 0) -> Batch:
    """Random ids; every second token is 'masked'."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    return Batch(
        input_ids=torch.randint(0, config.vocabulary, (tokens,), generator=generator),
        segment_ids=torch.randint(0, max(1, config.segments), (tokens,), generator=generator),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=bounds,
        max_length=max(lengths),
        row_ids=torch.arange(len(lengths)) + 100,
        mlm_positions=torch.arange(0, tokens, 2),
    )


def padded(batch: Batch, extra: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The same sequences as (B, L) ids, mask and segments, with `extra` columns of padding more than needed."""
    shape = (batch.rows, batch.max_length + extra)
    ids, segments, mask = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    for row, (first, last) in enumerate(zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)):
        ids[row, : last - first] = batch.input_ids[first:last]
        segments[row, : last - first] = batch.segment_ids[first:last]
        mask[row, : last - first] = 1
    return ids, mask, segments

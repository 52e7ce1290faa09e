"""Tiny models with early exits, whose answers differ from layer to layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from compress.contracts import Batch
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.tables.random_rows import draw_mixed_rows
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.exits import ExitConfig
from compress.encoder.config.relative import RelativeBias
from compress.encoder.modules.model import Model
from compress.encoder.reshape.early_exits import add_exits

EXIT_LAYERS = (1, 2)
WIRINGS: dict[str, dict[str, Any]] = {
    "bert": {},
    "distances": {"relative_bias": RelativeBias(8, 16), "segments": 0},
    "modernbert": {
        "norm": "pre", "positions": "rotary", "rotary_bases": (100.0, 10.0, 100.0), "gated": True, "segments": 0,
        "windows": (None, 3, 2),
    },
}  # fmt: skip


def make_plain_model(wiring: str = "bert", vocabulary: int = 61, labels: int = 3) -> Model:
    """Three layers of width 32, with a head of so many labels."""
    config = EncoderConfig.uniform(
        vocabulary=vocabulary, hidden=32, layers=3, heads=2, feed_forward=48, max_positions=32, initializer_range=0.5,
        **{"pooler": wiring == "bert", **WIRINGS[wiring]},
    )  # fmt: skip
    style = "bert" if wiring == "bert" else "roberta"
    return Model(config, {"task": HeadConfig("classification", labels=labels, style=style)}).initialize(1).eval()


def make_early_model(model: Model | None = None, thresholds: Sequence[float] = (0.7, 0.8)) -> Model:
    """The model with exits behind EXIT_LAYERS; None: the plain one."""
    model = make_plain_model() if model is None else model
    exits = [ExitConfig(layer, threshold) for layer, threshold in zip(EXIT_LAYERS, thresholds, strict=True)]
    generator = torch.Generator().manual_seed(3)
    heads = [nn.Linear(2 * model.config.hidden, model.head_configs["task"].labels) for _ in exits]
    scale = 0.15 if model.config.norm == "post" else 0.03  # their states are larger
    with torch.no_grad():
        for parameter in (p for head in heads for p in head.parameters()):
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return add_exits(model, exits, heads)


def draw_batch(rows: int = 48) -> Batch:
    """Sequences of random tokens, of different lengths."""
    return evaluation_batches(draw_mixed_rows(61, 24, rows), 4096)[0]

"""What dropping tokens costs and saves: the loss of each layer's choice alone, and milliseconds of fewer tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from compress.contracts import Batch
from compress.encoder.config.token_dropping import ALL, count_kept
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.reshape.dropped_tokens import drop_tokens
from compress.recipe.schema import LatencySpec
from compress.stages.drop_tokens.plans import GRID, MeasuredDrops
from compress.stages.shared.divergence import ReferenceAnswers
from compress.stages.shared.timing import build_call, measure_calls

LEAST = 3
"""Tokens of a sequence that is timed."""


def measure_drops(
    model: Model, batches: Sequence[Batch], latency: LatencySpec, device: str, told: Callable[[int], None]
) -> MeasuredDrops:
    """batches: texts that losses are measured on, by the divergence from the model's own answers.  latency: its length
    is that of the text that stands for all.  told: of how many choices are measured, of `count_choices`."""
    depth, done = model.config.depth, 0
    reference = ReferenceAnswers(prepare(model), batches)
    losses: list[dict[int, float]] = [dict.fromkeys(GRID, 0.0) for _ in range(depth)]
    for layer in range(depth - 1):
        for percent in GRID[1:]:
            plan = (ALL,) * layer + (percent,) * (depth - layer)
            losses[layer][percent] = reference.divergence(prepare(drop_tokens(model, plan)))
            told(done := done + 1)
    layers, choosing = _measure_times(model, latency, device)
    return MeasuredDrops(losses, layers, choosing)


def count_choices(depth: int) -> int:
    """Choices whose loss is measured."""
    return (depth - 1) * (len(GRID) - 1)


def find_mean_length(batches: Sequence[Batch]) -> int:
    """Tokens of a text, on average."""
    lengths = torch.cat([batch.cu_seqlens.diff().cpu() for batch in batches])
    return max(LEAST, round(float(lengths.double().mean())))


def _measure_times(model: Model, latency: LatencySpec, device: str) -> tuple[dict[int, float], float]:
    """(percentage → milliseconds of a layer, those of a choice of tokens), in torch: of the whole model on shorter
    texts, and of one that chooses once and drops one token in a hundred at most. Timed in turn."""
    length, depth = latency.tokens, model.config.depth
    plans = [latency.model_copy(update={"length": max(LEAST, count_kept(length, percent))}) for percent in GRID]
    calls = [build_call(model, plan, device) for plan in plans]
    chosen = build_call(drop_tokens(model, (ALL - 1,) * depth), plans[0], device)
    found = measure_calls([*calls, chosen], latency, device)
    times = [one.p50 for one in found]
    layers = {percent: ms / depth for percent, ms in zip(GRID, times, strict=False)}
    return layers, max(0.0, times[-1] - times[0])

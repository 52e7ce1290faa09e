"""Token dropping as nodes of a graph: TopK over the attention that tokens receive, then a gather. Shapes: B batch, L
length, K tokens that go on, of the longest row.

Each row keeps its own share of its own tokens, whatever it is batched with: the rows of a batch get a new mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compress.encoder.config.token_dropping import ALL
from compress.onnx.graph import FLOAT, INT64, Graph, Value

FIRST = 1e30
"""Score of the first token, above all others."""


@dataclass(frozen=True)
class ChosenTokens:
    """places: (B, K, 1) int64, the first token first, then by what they receive.  mask: (B, K) int64."""

    places: Value
    mask: Value


def choose_tokens(graph: Graph, weights: Value, mask: Value, lengths: Value, percent: int) -> ChosenTokens:
    """The tokens that go on after a layer's attention.

    weights: (B, H, L, L), its probabilities.  mask: (B, L) int64 of the tokens that it reads.  lengths: (B, 1) int64
    tokens of each text.  percent: of these that go on (`encoder.config.token_dropping.count_kept`).
    """
    g, real = graph, graph.op("Cast", mask, to=FLOAT)
    by_query = g.op("ReduceSum", weights, g.integers(1), keepdims=0)  # (B, L, L), over the heads
    received = g.op("Squeeze", g.op("MatMul", g.op("Unsqueeze", real, g.integers(1)), by_query), g.integers(1))
    scores = g.op("Add", g.op("Mul", received, real), g.op("Sub", real, g.constant(1.0)))  # -1 on padding
    is_first = g.op(
        "Equal", _count_up(g, g.op("Slice", g.op("Shape", mask), g.integers(1), g.integers(2))), g.integers(0)
    )
    scores = g.op("Where", is_first, g.constant(FIRST), scores)
    rounded = g.op("Add", g.op("Mul", lengths, g.integers(percent)), g.integers(ALL - 1))
    counts = g.op("Div", rounded, g.integers(ALL))
    most = g.largest(g.op("Reshape", counts, g.integers(-1)), keep=True)
    _, places = g.node("TopK", [scores, most], 2, axis=-1)
    kept = g.op("Cast", g.op("Less", _count_up(g, most), counts), to=INT64)
    return ChosenTokens(g.op("Unsqueeze", places, g.integers(2)), kept)


def _count_up(graph: Graph, end: Value) -> Value:
    """0, 1 .. below a number (1,)."""
    zero, one = graph.constant(0, np.int64), graph.constant(1, np.int64)
    return graph.op("Range", zero, graph.op("Squeeze", end, graph.integers(0)), one)

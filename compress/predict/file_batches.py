"""How many rows and tokens an exported file is given at once. Its runtimes pad a batch to its longest row, so rows of
one length go together (`data.batches.buckets`).

The alternative is a packed graph: rows of any length end to end, attention apart for each length. Built and measured
for a MiniLM in onnxruntime (`benchmarks/RESULTS.md`), it takes 4 to 7 % longer than separate calls of 250 tokens, and
is faster only below about 100 tokens of each length. In windows of 4,096 rows a call has 770.
"""

from __future__ import annotations

from compress.encoder.config.encoder import EncoderConfig
from compress.onnx.runtimes import Runtime

WINDOW = 4096
"""Rows that are sorted together where all of them are at hand: SST-2's training texts then compute 0.2 % of padding in
285 calls of 16,384 rows, in windows of 1,024 rows 1.5 % in 423."""
ACTIVATIONS = 1024 * 1536
"""Numbers of a batch in a layer's widest place. 500 to 1,000 tokens of a MiniLM are computed equally fast; with 2,000
or 4,000 they leave the caches, and onnxruntime takes 15 to 20 % longer for each. OpenVINO, which joins operators, is at
its best with twice as many."""
CALL_WORK = 35_000_000
"""Multiplications of a layer that take as long as starting its operators: 20 tokens of a MiniLM's layer."""


def choose_file_budget(config: EncoderConfig, runtime: Runtime) -> int:
    """Tokens of a batch, padding included."""
    widest = max((max(shape.attention_width, shape.feed_forward) for shape in config.layers), default=config.hidden)
    numbers = 2 * ACTIVATIONS if runtime == "openvino" else ACTIVATIONS
    return max(1, numbers // max(widest, config.hidden))


def count_call_tokens(config: EncoderConfig) -> int:
    """Tokens that take as long as what every call costs, whatever it computes."""
    each = [
        4 * config.hidden * shape.attention_width + 2 * config.hidden * shape.feed_forward for shape in config.layers
    ]
    return max(1, round(CALL_WORK * len(each) / sum(each))) if each else 1

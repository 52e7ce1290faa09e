"""The small models that a cost table is made of: which ones, and the file of each.

Models of few layers with random weights, each with fewer heads or fewer neurons than the first; differences are what a
layer, a head and a neuron cost. Where the last layer computes the first token alone, two others are made narrower
before it, and it by itself. Larger ones of other shapes show how well sums foretell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.modules.model import Model
from compress.fit.cost.blocks import ranks
from compress.fit.cost.serving import FLOAT, Bits, Serving, content, count_stored_bytes, quantize_to_bits

HEAD_SIZES, NEURON_SIZES = 5, 6
"""Sizes of each kind that are timed; between them time is taken to grow evenly, bytes do."""
CHECKED = ((1.0, 1.0, 1.0), (1.0, 0.5, 0.5), (1.0, 0.75, 0.25), (0.67, 1.0, 0.5), (0.5, 0.34, 1.0))
"""Shares of the layers, heads and neurons of the models that sums of blocks are checked against."""

REPEATED = 1024
"""Random numbers of a matrix, over and over."""


@dataclass(frozen=True)
class Sample:
    """A small model to write and to time. word: bits of the word table.  rank: width of factorized embeddings, 0 for
    none.  last: heads and neurons of its last layer, where they are others."""

    depth: int
    heads: int
    neurons: int
    bits: int
    word: int
    rank: int = 0
    last: tuple[int, int] | None = None

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Heads and neurons of each layer."""
        return [(self.heads, self.neurons)] * (self.depth - 1) + [self.last or (self.heads, self.neurons)]


@dataclass(frozen=True)
class Ladder:
    """The samples of a model that is served in some way.

    full: heads and neurons of the whole model's largest layer.  counts: of heads and of neurons that are timed.  depth:
    layers of the larger samples.  end: the last layer's shape in these, where it is timed apart.  bits, words: of
    matrices and of the word table, the usual first.  ranks: of factorized embeddings.  checks: what sums are checked
    against.
    """

    full: tuple[int, int]
    counts: tuple[list[int], list[int]]
    depth: int
    end: tuple[int, int] | None
    bits: tuple[int, ...]
    words: tuple[int, ...]
    ranks: tuple[int, ...]
    checks: list[Sample]

    @property
    def one(self) -> Sample:
        """A full layer in the usual bits."""
        return Sample(1, *self.full, self.bits[0], self.words[0])

    @property
    def tables(self) -> list[Sample]:
        """The full layer with every form of the embeddings."""
        return [dataclasses.replace(self.one, word=word, rank=rank) for rank in (0, *self.ranks) for word in self.words]

    def sample(self, bits: int, depth: int, shape: tuple[int, int]) -> Sample:
        """Of so many layers, of which all but the last one that is timed apart have the shape."""
        return Sample(depth, *shape, bits, self.words[0], last=self.end if depth > 1 else None)

    @property
    def samples(self) -> list[Sample]:
        """All of them, each once."""
        heads, neurons = self.full
        steps = [*((h, neurons) for h in self.counts[0]), *((heads, f) for f in self.counts[1])]
        found: list[Sample] = []
        for bits in self.bits:
            found += [self.sample(bits, self.depth, shape) for shape in steps]
            found += [self.sample(bits, 1, shape) for shape in (steps if self.end else [self.full])]
        return list(dict.fromkeys([*found, *self.tables, *self.checks]))


def choose_samples(config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving) -> Ladder:
    """What is timed for models of this width."""
    most_heads = max(shape.heads for shape in config.layers)
    most_neurons = max(shape.feed_forward for shape in config.layers)
    full, most = (most_heads, most_neurons), (config.depth, most_heads, most_neurons)
    apart = is_last_layer_apart(heads, serving)
    depth, end = (3, full) if apart else (2, None)
    shapes = [[max(1, round(p * n)) for p, n in zip(part, most, strict=True)] for part in CHECKED]
    checks = [Sample(depth, h, f, serving.bits[0], serving.table_bits[0]) for depth, h, f in shapes]
    counts = _sizes(most_heads, HEAD_SIZES), _sizes(most_neurons, NEURON_SIZES)
    return Ladder(full, counts, depth, end, serving.bits, serving.table_bits, ranks(config), checks)


def is_last_layer_apart(heads: Mapping[str, HeadConfig], serving: Serving) -> bool:
    """Whether the last layer takes another time than others: where a file computes its first token alone."""
    return serving.writes and "task" in heads and heads["task"].only_first


def list_shapes(config: EncoderConfig) -> list[tuple[int, int]]:
    """Heads and neurons of each layer."""
    return [(layer.heads, layer.feed_forward) for layer in config.layers]


def count_rows(config: EncoderConfig) -> int:
    """Word rows of a sample."""
    return config.pad_id + 8


def make_sample(
    sample: Sample, config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving, vocabulary: int
) -> Model:
    """With random weights, quantized."""
    width = config.layers[0].head_width
    small = dataclasses.replace(
        config,
        layers=tuple(LayerShape(heads, width, neurons) for heads, neurons in sample.shapes),
        vocabulary=vocabulary,
        embedding=sample.rank or config.embedding,
        project_first=bool(sample.rank) or config.project_first,
        layer_groups=None,
        sharing=None,
        windows=None,
        global_tokens=0,
        first_norm=True,
        rotary_bases=None if config.rotary_bases is None else (config.rotary_bases[0],) * sample.depth,
    )
    made = repeat_weights(Model(small, {k: v for k, v in heads.items() if k == "task"}).initialize(0)).eval()
    # Tables are rounded alike whatever the matrices are, so that these alone make the difference.
    bits = Bits({"encoder.layers.*": sample.bits}, sample.word, FLOAT if sample.word == FLOAT else 8)
    return quantize_to_bits(made, bits, serving)


@torch.no_grad()
def repeat_weights(model: Model) -> Model:
    """The same model, the numbers of whose matrices repeat: products of them take as long, and a kit of the files
    little space."""
    for weight in model.parameters():
        if weight.dim() > 1:
            numbers = weight.flatten()
            numbers.copy_(numbers[:REPEATED].repeat(len(numbers) // REPEATED + 1)[: len(numbers)])
    return model


def count_bytes(
    sample: Sample, config: EncoderConfig, heads: Mapping[str, HeadConfig], serving: Serving, vocabulary: int
) -> int:
    """That are deployed of it."""
    made = make_sample(sample, config, heads, serving, vocabulary)
    return len(content(made)) if serving.writes else count_stored_bytes(made)


def _sizes(most: int, count: int) -> list[int]:
    return np.unique(np.linspace(1, most, min(most, count)).round().astype(int)).tolist()

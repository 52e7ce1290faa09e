"""Neighbouring layers that share their matrices, each with a thin residual of its own (relaxed sharing, arXiv
2410.20672): one copy is stored, every layer is still computed. What a joint matrix is and how the residuals are fitted
is `compress.stages.share.conversion`'s."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from compress.contracts import Batch, LayerGroups
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.sharing import Sharing
from compress.encoder.infer import statistics
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import OUTPUTS, units
from compress.stages.share.conversion import LayerStatistics, convert
from compress.stages.share.starts.activation import Start

RANK = 4
"""Of residuals, which stay in floats: on SST-2 a pair lost .031 nats without, .009 with rank 4 and no less with 16."""

GRAPH = 0.006
"""Megabytes of a file that tell of the residuals of one layer, as nodes and names."""


@dataclass(frozen=True)
class Join:
    """Layers `first` and the next one, with all their heads and neurons. loss: nats from the model's answers."""

    first: int
    loss: float


def list_joinable_layers(config: EncoderConfig) -> list[int]:
    """The first ones of neighbours that may share: alike in shape, in a model where every layer has its own matrices
    and one layer more is left."""
    if config.depth < 3 or any(len(unit) > 1 for part in OUTPUTS for unit in units(config, part)):
        return []
    return [i for i in range(config.depth - 1) if config.layers[i] == config.layers[i + 1]]


def collect_statistics(model: Model, batches: Sequence[Batch]) -> LayerStatistics:
    """What shared matrices are fitted by."""
    return LayerStatistics(inputs=statistics.inputs(model, batches))


def join_layers(model: Model, firsts: Sequence[int], known: LayerStatistics | None, rank: int | None = None) -> Model:
    """The model with these layers and their next ones joined. known: None where its size alone matters, then nothing
    is fitted.  rank: of residuals, as many as fit by default."""
    groups = _groups(model.config.depth, firsts)
    rank = residual_rank(model.config) if rank is None else rank
    return convert(model, LayerGroups(groups, groups), Start(), residual_rank=rank, known=known).eval()


def _groups(depth: int, firsts: Sequence[int]) -> tuple[int, ...]:
    return tuple(itertools.accumulate((layer - 1 not in firsts for layer in range(1, depth)), initial=0))


def residual_rank(config: EncoderConfig) -> int:
    """RANK, or less in a model that has no room for it."""
    return min(RANK, max(1, config.hidden // 8))


def own_megabytes(config: EncoderConfig, first: int) -> float:
    """What a pair stores beside one layer: a residual for each matrix of both, and the second's biases and norms."""
    layer = config.layers[first].count_parameters(config.hidden, **config.layer_traits)
    numbers = _count(config, first, residual_rank(config)) - (config.count_parameters() - layer)
    return 2 * GRAPH + 4 * numbers / 1e6


def residual_share(config: EncoderConfig, first: int) -> float:
    """Numbers in a layer's residuals over those in its matrices."""
    sizes = config.layers[first].sizes(config.hidden, gated=config.gated).values()
    return residual_numbers(config, first) / sum(out * into for out, into in sizes)


def residual_numbers(config: EncoderConfig, first: int) -> int:
    """Numbers in the residuals of one layer of a pair."""
    return (_count(config, first, residual_rank(config)) - _count(config, first, 0)) // 2


def _count(config: EncoderConfig, first: int, rank: int) -> int:
    """Parameters of the encoder with one pair joined."""
    groups = _groups(config.depth, (first,))
    return dataclasses.replace(config, sharing=Sharing(groups, groups, residual_rank=rank)).count_parameters()

"""Magnitude: the norm of the weights of a unit (Han et al., arXiv 1506.02626, for whole rows and columns).

Measured no better than random for heads and neurons; a baseline that other importances must beat.
"""

from __future__ import annotations

from torch import Tensor

from compress.contracts import WidthScores, WidthStudy
from compress.encoder.modules.layers import Attention, FeedForward
from compress.encoder.modules.tied import dense_weight
from compress.encoder.reshape.basis import copy_plain
from compress.stages.prune_width.importance._common import by_unit, readers, sum_incoming_squares, writers


class Importance:
    """Score: L2 norm of the rows and columns that belong to a head, neuron or channel."""

    reads_text, reads_labels, in_loss, rearranges, refits = False, False, False, False, False

    def __call__(self, study: WidthStudy) -> WidthScores:
        def of_heads(_: int, module: Attention) -> Tensor:
            rows = [copy_plain(dense_weight(part)).square().sum(1) for part in (module.query, module.key, module.value)]
            columns = copy_plain(dense_weight(module.output)).square().sum(0)
            return (sum(rows) + columns).view(module.heads, -1).sum(1).sqrt()

        def of_neurons(_: int, module: FeedForward) -> Tensor:
            return (sum_incoming_squares(module) + copy_plain(dense_weight(module.down)).square().sum(0)).sqrt()

        return by_unit(study.model, of_heads, of_neurons)

    def hidden(self, study: WidthStudy) -> Tensor:
        return (readers(study.model) + writers(study.model)).sqrt()

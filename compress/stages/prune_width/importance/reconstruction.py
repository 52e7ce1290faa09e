"""Fisher masks, rearranged within layers, with output matrices refitted to the remaining units (Kwon et al., arXiv
2204.09656): takes minutes, no retraining. `obs` loses less."""

from __future__ import annotations

from compress.stages.prune_width.importance import fisher


class Importance(fisher.Importance):
    """Score: Fisher information of gates, as in `fisher`. The removed units of a layer are then exchanged one by one
    until their joint effect is small, not only each effect alone; each output matrix is refitted by least squares to
    the output of the unpruned model.

    on: as of fisher.
    """

    rearranges, refits = True, True

"""Fisher masks, rearranged within layers, and output matrices fitted anew to what is left (Kwon et al., arXiv
2204.09656): minutes, no retraining. `obs` loses less."""

from __future__ import annotations

from compress.stages.prune_width.importance import fisher


class Importance(fisher.Importance):
    """The information of gates as `fisher` has it; what goes from a layer is then exchanged, unit by unit, until the
    sum of its gradients is small together and not only one by one; each output matrix is fitted by least squares to
    what the model before wrote.

    on: as of fisher.
    """

    rearranges, refits = True, True

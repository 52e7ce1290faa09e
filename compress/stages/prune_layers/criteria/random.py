"""Random baseline."""

from __future__ import annotations

import numpy as np

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import choose_fixed


class Criterion:
    """Keep layers drawn at random from the run's seed; reads no text. A useful criterion must beat it."""

    reads_text = False
    reads_labels = False

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        drawn = np.random.default_rng([study.seed, keep]).choice(study.depth, keep, replace=False)
        return choose_fixed(
            sorted(map(int, drawn)), study.depth, protected, f"not selected at random (seed {study.seed})"
        )

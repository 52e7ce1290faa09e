"""Greedy CKA: repeatedly remove the layer whose output is most similar to that of the kept layer before it."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import (
    find_layer_before,
    format_layer,
    list_remaining,
    make_undefined_error,
)

SCORE = "CKA with the kept layer before it"


class Criterion:
    """Score: debiased CKA of layer outputs; the embedding output counts as a kept layer. In a tie, the later
    layer goes.

    on: tokens (all tokens without padding), cls (the first token of each text), mean (the mean of each text).
    kernel: linear, or rbf with bandwidth times the median distance of each layer.
    dynamic: measure again after each removal on the remaining model; false: measure once on the full model.
    """

    reads_text = True
    reads_labels = False

    def __init__(
        self,
        *,
        on: Literal["tokens", "cls", "mean"] = "tokens",
        kernel: Literal["linear", "rbf"] = "linear",
        bandwidth: Annotated[float, Field(gt=0)] = 1.0,
        dynamic: bool = False,
    ) -> None:
        self.on: Literal["tokens", "cls", "mean"] = on
        self.kernel, self.bandwidth, self.dynamic = kernel, bandwidth, dynamic

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        reasons: dict[int, str] = {}
        scores: dict[int, float] = {}
        kept = list(range(study.depth))
        while len(kept) > keep:
            found = self._likeness(study, kept)
            scores = {**scores, **found} if reasons else dict(found)
            free = {layer: value for layer, value in found.items() if layer not in protected and np.isfinite(value)}
            if not free:
                raise make_undefined_error(
                    "cka", "no removable layer has a CKA with the previous layer: outputs are constant"
                )
            gone = max(free, key=lambda layer: (free[layer], layer))
            reasons[gone] = (
                f"CKA {free[gone]:.3f} with {format_layer(find_layer_before(kept, gone))}, the highest of those left"
            )
            kept.remove(gone)
        return LayerChoice(list_remaining(study.depth, list(reasons)), reasons, scores, score=SCORE, form="{:.3f}")

    def _likeness(self, study: LayerStudy, kept: list[int]) -> dict[int, float]:
        """Kept layer → CKA with the one before it; NaN where it is undefined."""
        among = kept if self.dynamic else range(study.depth)
        instrument = study.cka(self.on, keep=among, kernel=self.kernel, bandwidth=self.bandwidth)
        matrix = instrument.matrix().filled(np.nan)
        row = {layer: place + 1 for place, layer in enumerate(among)}
        sources = [0, *(row[layer] for layer in kept)]
        return {layer: float(matrix[sources[i], sources[i + 1]]) for i, layer in enumerate(kept)}

"""Measured loss of every set of layers of the requested size: the optimum on this text, before recovery training."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Annotated

from pydantic import Field

from compress.contracts import LayerChoice, LayerStudy
from compress.errors import UserError


class Criterion:
    """Score: loss on the labels of every set that contains the protected layers. limit: maximum number of sets."""

    reads_text = True
    reads_labels = True

    def __init__(self, *, limit: Annotated[int, Field(gt=0, le=1_000_000)] = 1000) -> None:
        self.limit = limit

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        free = [layer for layer in range(study.depth) if layer not in protected]
        count = comb(len(free), keep - len(protected))
        if count > self.limit:
            raise UserError(
                f"{count:,} sets of {keep} layers exceed the search limit",
                where="criterion exhaustive",
                why=f"limit is {self.limit:,}",
                do="raise criterion.limit, protect layers, or use greedy_loss",
            )
        sets = [tuple(sorted({*protected, *chosen})) for chosen in combinations(free, keep - len(protected))]
        losses = study.losses(sets)
        best = min(losses, key=lambda kept: (losses[kept], kept))
        why = f"not in the set with the smallest loss, {losses[best]:.4f}, of {count:,}"
        reasons = {layer: why for layer in range(study.depth) if layer not in best}
        return LayerChoice(best, reasons, of_sets=losses, score="loss of the set")

"""Tie layers with similar outputs: groups by centred kernel alignment (CKA, arXiv 1905.00414) on real input."""

from __future__ import annotations

from functools import cache
from typing import Annotated

import numpy as np
from pydantic import Field

from compress.contracts import LayerEvidence, LayerGroups
from compress.errors import UserError


class Pattern:
    """groups: number of groups.  contiguous: groups of neighbouring layers, the best of all partitions; false: any
    layers, merged by average linkage, most similar first.
    """

    def __init__(self, *, groups: Annotated[int, Field(ge=1, le=512)], contiguous: bool = True) -> None:
        self.groups, self.contiguous = groups, contiguous

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of `depth` layers. Raises UserError for more groups than layers."""
        if self.groups > depth:
            raise UserError(f"{self.groups} groups of {depth} layers", where="pattern.groups", do=f"use 1..{depth}")
        apart = 1 - evidence.similarity()
        groups = _runs(apart, self.groups) if self.contiguous else _linked(apart, self.groups)
        return LayerGroups(groups, groups)


def _runs(apart: np.ndarray, count: int) -> tuple[int, ...]:
    """The cuts into `count` runs with the smallest sum, over runs, of the distances inside over the run's size."""
    depth = len(apart)

    def inside(first: int, last: int) -> float:
        return float(apart[first:last, first:last].sum() / 2 / (last - first))

    @cache
    def best(last: int, runs: int) -> tuple[float, tuple[int, ...]]:
        """(cost, where runs begin) of the first `last` layers in so many runs."""
        if runs == 1:
            return inside(0, last), (0,)
        tried = [(best(cut, runs - 1), cut) for cut in range(runs - 1, last)]
        return min((cost + inside(cut, last), (*begins, cut)) for (cost, begins), cut in tried)

    begins = best(depth, count)[1]
    return tuple(sum(layer >= begin for begin in begins) - 1 for layer in range(depth))


def _linked(apart: np.ndarray, count: int) -> tuple[int, ...]:
    """Clusters by average linkage, numbered as they appear."""
    clusters = [[layer] for layer in range(len(apart))]
    while len(clusters) > count:
        pairs = [(float(apart[np.ix_(a, b)].mean()), i, j) for i, a in enumerate(clusters)
                 for j, b in enumerate(clusters) if i < j]  # fmt: skip
        _, i, j = min(pairs)
        clusters[i] = sorted(clusters[i] + clusters.pop(j))
    clusters.sort()
    return tuple(next(number for number, c in enumerate(clusters) if layer in c) for layer in range(len(apart)))

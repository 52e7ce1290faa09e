"""CKA clusters: similar neighbouring layers form a block whose first layer stays (arXiv 2408.13482)."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import format_layer, make_undefined_error


class Criterion:
    """Merge neighbouring blocks with the highest mean CKA until there are as many blocks as layers to keep.

    on: tokens, cls or mean, as in criterion cka.
    The first layer of a block stays, or a protected one; layers in the block of the embeddings are removed.
    """

    reads_text = True
    reads_labels = False

    def __init__(self, *, on: Literal["tokens", "cls", "mean"] = "tokens") -> None:
        self.on: Literal["tokens", "cls", "mean"] = on

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        matrix = study.cka(self.on).matrix().filled(np.nan)
        blocks = [[place] for place in range(study.depth + 1)]  # 0 is the embeddings, layer l is l + 1
        held = {0, *(layer + 1 for layer in protected)}
        while len(blocks) > keep + 1:
            values = [self._likeness(matrix, a, b, held) for a, b in pairwise(blocks)]
            best = int(np.argmax(values))
            if not np.isfinite(values[best]):
                raise make_undefined_error("cka_clusters", "outputs are constant, or too many layers are protected")
            blocks[best : best + 2] = [blocks[best] + blocks[best + 1]]
        stays = [next((place for place in block if place in held), block[0]) for block in blocks]
        keeps = tuple(place - 1 for place in stays if place > 0)
        reasons = {
            place
            - 1: f"CKA {matrix[place, stay]:.3f} with {format_layer(stay - 1 if stay else None)}, which stands for it"
            for block, stay in zip(blocks, stays, strict=True)
            for place in block
            if place != stay
        }
        return LayerChoice(keeps, reasons)

    @staticmethod
    def _likeness(matrix: np.ndarray, one: list[int], other: list[int], held: set[int]) -> float:
        """Mean CKA between two blocks; −inf where they must stay apart or it is undefined."""
        if held & set(one) and held & set(other):
            return -np.inf
        value = float(matrix[np.ix_(one, other)].mean())
        return value if np.isfinite(value) else -np.inf

"""Groups named by the user."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from compress.contracts import LayerGroups, ListOf, Similarity
from compress.errors import UserError


class Pattern:
    """groups: lists of layers, counted from 0; each layer stands in one of them: [[0, 1], [2, 3], [4, 5]]."""

    def __init__(self, *, groups: Annotated[ListOf[ListOf[int]], Field(min_length=1)]) -> None:
        self.groups = groups

    def __call__(self, depth: int, similarity: Similarity) -> LayerGroups:
        """The groups of `depth` layers. Raises UserError for layers that are in no group, in two, or not there."""
        where, found = "pattern.groups", dict[int, int]()
        for number, layers in enumerate(self.groups):
            for layer in layers:
                if not 0 <= layer < depth:
                    raise UserError(f"layer {layer} does not exist", where=where, why=f"legal: 0..{depth - 1}")
                if layer in found:
                    raise UserError(
                        f"the groups overlap: layer {layer} stands in two" if found[layer] != number
                        else f"layer {layer} is named twice",
                        where=where,
                        do="name each layer once",
                    )  # fmt: skip
                found[layer] = number
        missing = [str(layer) for layer in range(depth) if layer not in found]
        if missing:
            raise UserError(
                f"the groups do not cover layer{'s' * (len(missing) > 1)} {', '.join(missing)}",
                where=where,
                why=f"the model's layers are 0..{depth - 1}",
                do=f"add {', '.join(f'[{layer}]' for layer in missing)} to leave them alone",
            )
        groups = tuple(found[layer] for layer in range(depth))
        return LayerGroups(groups, groups)

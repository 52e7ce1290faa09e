"""Recipe keys of stage reduce_dimensions."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from compress.contracts import StageSpec
from compress.contracts.traits import Rejection, rejects_quantized


class Spec(StageSpec):
    """Rotate the vectors of an embedding model to their principal directions, the largest first, and keep the first
    ones. Cosines of the first N dimensions are then the nearest to those of all dimensions that a linear map can
    give."""

    reads: ClassVar[frozenset[str]] = frozenset({"teacher", "data"})
    rejected: ClassVar[tuple[Rejection, ...]] = (rejects_quantized("changing its vectors"),)
    milestone: ClassVar[str | None] = "after PCA"
    embeds: ClassVar[bool] = True
    own_pooling: ClassVar[bool] = True

    kind: Literal["reduce_dimensions"]
    dimensions: int | None = Field(default=None, gt=0, le=65_536)
    """Width of the vectors. Default: all dimensions, in the order of their variance, so that programs can cut vectors
    at any width."""
    rows: int = Field(default=10_000, gt=0, le=10**9)
    """Maximum number of training texts whose vectors the directions are fitted on."""

    def turns_vectors(self) -> bool:
        """Always: its axes are the principal directions."""
        return True

"""What a recipe may say about removing layers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from compress.contracts import ListOf, StageSpec
from compress.contracts.traits import Rejection, rejects_quantized
from compress.registry import RowOf

TARGETS = ("keep", "drop", "max_drop", "target_latency", "layers")


class Spec(StageSpec):
    """Cut layers out of the model before this stage, or out of the teacher when it is the first."""

    reads: ClassVar[frozenset[str]] = frozenset({"data", "teacher"})
    timed: ClassVar[bool] = True
    timed_by: ClassVar[tuple[str, ...]] = ("target_latency",)
    rejected: ClassVar[tuple[Rejection, ...]] = (rejects_quantized("cutting it"),)
    milestone: ClassVar[str | None] = "after cutting"

    kind: Literal["prune_layers"]
    criterion: Annotated[Any, RowOf("compress.stages.prune_layers.criteria")] = Field(
        default={"kind": "cka"}, validate_default=True
    )
    """What chooses the layers that stay: a file of compress/stages/prune_layers/criteria."""
    keep: int | None = Field(default=None, ge=1, le=512)
    """How many layers stay."""
    drop: int | None = Field(default=None, ge=1, le=511)
    """How many layers go."""
    max_drop: float | None = Field(default=None, ge=0, le=100)
    """Remove as many as cost at most so many points (hundredths) of the main metric on validation, before recovery."""
    target_latency: float | None = Field(default=None, gt=0)
    """Remove as few as bring the median latency on this device to so many milliseconds, timed as `evaluation.latency`
    says."""
    layers: ListOf[int] | None = None
    """Exactly these stay, counted from 0; no criterion is asked."""
    at_most: int | None = Field(default=None, ge=1, le=511)
    """Layers removed by this stage at once, where more would have to go: further stages go on."""
    protect: ListOf[int] | None = None
    """Layers that stay whatever the criterion says; null: the first of a model whose first layer is unlike the others
    (ModernBERT)."""
    rows: int = Field(default=512, ge=1, le=10_000_000)
    """Training texts that layers are judged by, spread over the split."""

    @field_validator("layers", "protect")
    @classmethod
    def _numbers(cls, layers: tuple[int, ...] | None) -> tuple[int, ...] | None:
        for layer in layers or ():
            if layer < 0:
                raise ValueError(f"found {layer} among the layers, allowed: whole numbers from 0")
        return layers

    @model_validator(mode="after")
    def _one_target(self) -> Spec:
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"say once how many layers go: {', '.join(TARGETS)}; found {found}")
        if self.at_most is not None and given[0] not in ("keep", "drop"):
            raise ValueError(f"at_most goes with keep or drop, not with {given[0]}")
        if self.protect and self.layers is not None:
            raise ValueError("layers names all that stay; leave protect out")
        return self

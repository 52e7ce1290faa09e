"""Recipe keys of stage prune_layers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from compress.contracts import ListOf, StageSpec
from compress.contracts.traits import Rejection, rejects_dropped_tokens, rejects_quantized, rejects_static
from compress.encoder.config.layer_maps import halve_depth
from compress.errors import describe
from compress.registry import RowOf

HALF = "half"
TARGETS = ("keep", "drop", "max_drop", "target_latency", "layers")


class Spec(StageSpec):
    """Remove layers from the model of the stage before, or from the teacher when this is the first stage."""

    reads: ClassVar[frozenset[str]] = frozenset({"data", "teacher"})
    timed: ClassVar[bool] = True
    timed_by: ClassVar[tuple[str, ...]] = ("target_latency",)
    rejected: ClassVar[tuple[Rejection, ...]] = (
        rejects_quantized("cutting it"),
        rejects_static("remove"),
        rejects_dropped_tokens("removing layers"),
    )
    milestone: ClassVar[str | None] = "after cutting"
    embeds: ClassVar[bool] = True

    kind: Literal["prune_layers"]
    criterion: Annotated[Any, RowOf("compress.stages.prune_layers.criteria")] = Field(
        default={"kind": "cka"}, validate_default=True
    )
    """Criterion that chooses the layers to keep: a file of compress/stages/prune_layers/criteria."""
    keep: int | str | None = None
    """Number of layers to keep; or half, rounded up."""
    drop: int | None = Field(default=None, ge=1, le=511)
    """Number of layers to remove."""
    max_drop: float | None = Field(default=None, ge=0, le=100)
    """Remove as many layers as possible while the main metric on validation drops by at most this many percentage
    points, before recovery training."""
    target_latency: float | None = Field(default=None, gt=0)
    """Remove as few layers as possible to reach this median latency in milliseconds on this device, measured as set in
    `evaluation.latency`."""
    layers: ListOf[int] | None = None
    """Exactly the layers to keep, counted from 0; no criterion is used."""
    max_layers_per_stage: int | None = Field(default=None, ge=1, le=511)
    """Maximum number of layers that this stage removes; later stages remove the rest. Default: no limit."""
    protect: ListOf[int] | None = None
    """Layers that are always kept. Default: the first layer of a model whose first layer differs from the others
    (ModernBERT), else none."""
    rows: int = Field(default=512, ge=1, le=10_000_000)
    """Number of training texts for the criterion, spread over the split."""

    @field_validator("keep", mode="before")
    @classmethod
    def _keep(cls, keep: Any) -> Any:
        """Checked by hand, since a union of two types would give two errors for one mistake."""
        is_number = isinstance(keep, int) and not isinstance(keep, bool) and 1 <= keep <= 512
        if keep in (None, HALF) or is_number:
            return keep
        raise ValueError(f"found {describe(keep)}, allowed: a whole number from 1 to 512, or {HALF}")

    @field_validator("layers", "protect")
    @classmethod
    def _numbers(cls, layers: tuple[int, ...] | None) -> tuple[int, ...] | None:
        for layer in layers or ():
            if layer < 0:
                raise ValueError(f"found layer {layer}, allowed: whole numbers from 0")
        return layers

    @model_validator(mode="after")
    def _one_target(self) -> Spec:
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"set exactly one of {', '.join(TARGETS)}; found {found}")
        if self.max_layers_per_stage is not None and given[0] not in ("keep", "drop"):
            raise ValueError(f"max_layers_per_stage requires keep or drop, found {given[0]}")
        if self.protect and self.layers is not None:
            raise ValueError("protect has no effect together with layers; remove protect")
        return self

    def count_kept(self, depth: int) -> int | None:
        """How many layers of `depth` should stay by `keep` or `drop`; None where neither is set."""
        if self.drop is not None:
            return depth - self.drop
        return halve_depth(depth) if isinstance(self.keep, str) else self.keep

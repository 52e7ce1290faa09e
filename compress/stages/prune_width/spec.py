"""Recipe keys of stage prune_width."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from compress.contracts import ListOf, StageSpec
from compress.contracts.traits import (
    Rejection,
    rejects_dropped_tokens,
    rejects_low_rank,
    rejects_partly_shared,
    rejects_quantized,
    rejects_sparse,
    rejects_static,
)
from compress.registry import RowOf

COUNTS = ("keep_heads", "intermediate_size")
BUDGETS = ("ratio", "target_params", "target_flops", "target_latency")
WIDTHS = ("hidden", "head_width")


class Spec(StageSpec):
    """Remove attention heads, feed-forward neurons, or channels of heads or of the hidden states from the model of the
    stage before, or from the teacher in the first stage."""

    reads: ClassVar[frozenset[str]] = frozenset({"data", "teacher"})
    reads_teacher: ClassVar[bool] = True
    timed: ClassVar[bool] = True
    timed_by: ClassVar[tuple[str, ...]] = ("target_latency",)
    rejected: ClassVar[tuple[Rejection, ...]] = (
        rejects_static("cut"),
        rejects_dropped_tokens("cutting heads"),
        rejects_quantized("cutting it"), rejects_sparse("cutting it"), rejects_low_rank("cutting it")
    )  # fmt: skip
    milestone: ClassVar[str | None] = "after cutting"
    embeds: ClassVar[bool] = True

    kind: Literal["prune_width"]
    importance: Annotated[Any, RowOf("compress.stages.prune_width.importance")] = Field(
        default={"kind": "obs"}, validate_default=True
    )
    """Importance score of heads, neurons and channels: a file of compress/stages/prune_width/importance."""
    keep_heads: int | ListOf[int] | None = None
    """Attention heads to keep in each layer: one number, or a list with one number per layer."""
    intermediate_size: int | ListOf[int] | None = None
    """Feed-forward neurons to keep in each layer: one number, or a list with one number per layer."""
    ratio: float | None = Field(default=None, gt=0, lt=1)
    """Fraction of heads and of feed-forward neurons to remove; with `uneven`, the fraction of their operations."""
    target_params: float | None = Field(default=None, gt=0)
    """Maximum number of parameters, including embeddings and heads. Values up to 1 are a fraction of the model's."""
    target_flops: float | None = Field(default=None, gt=0)
    """Maximum number of operations for one sequence of `evaluation.latency.length` tokens (128 if unset). Values up to
    1 are a fraction of the model's."""
    target_latency: float | None = Field(default=None, gt=0)
    """Maximum median latency in milliseconds on this device, measured as set in `evaluation.latency` on the model
    prepared for inference."""
    hidden: int | None = Field(default=None, ge=1)
    """Hidden size: channels of the hidden states to keep."""
    head_width: int | None = Field(default=None, ge=1)
    """Channels to keep in each head. Default: hidden / heads if the model had that and only `hidden` is set, else
    all."""
    stream: Literal["directions", "channels"] = "directions"
    """How the hidden size is reduced. directions: rotate the hidden states to their principal directions and remove the
    last ones (SliceGPT, arXiv 2401.15024).  channels: remove the channels of lowest importance along torch-pruning's
    dependency graph (arXiv 2301.12900); the other weights do not change."""
    uneven: bool = False
    """Non-uniform layers: rank the units of all layers together, so each layer keeps its own numbers. A stock Hugging
    Face class cannot load such a model."""
    refit: bool | None = None
    """Refit output matrices by least squares to make up for what is removed. Default: as the importance does."""
    schedule: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the reduction from the teacher's size to the target that this stage reaches; below 1 in the steps
    of a gradual schedule."""
    rows: int = Field(default=2048, ge=1, le=10_000_000)
    """Number of training texts for the importance and for refitting, spread over the split."""

    @field_validator("keep_heads", "intermediate_size")
    @classmethod
    def _numbers(cls, value: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        for number in (value,) if isinstance(value, int) else value or ():
            if number < 0:
                raise ValueError(f"found {number}, allowed: whole numbers from 0")
        return value

    @model_validator(mode="after")
    def _targets(self) -> Spec:
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        counts = [name for name in COUNTS if getattr(self, name) is not None]
        widths = [name for name in WIDTHS if getattr(self, name) is not None]
        if not budgets + counts + widths:
            raise ValueError(f"nothing is removed; set one of {', '.join((*COUNTS, *WIDTHS, *BUDGETS))}")
        if len(budgets) > 1 or (budgets and counts):
            raise ValueError(
                f"{' and '.join(budgets + counts)} cannot be combined: each sets the number of heads and neurons; "
                "keep one"
            )
        return self

    def rejects(self) -> tuple[Rejection, ...]:
        if not (self.hidden or self.head_width):
            return self.rejected
        narrower = rejects_partly_shared("so channels cannot be removed", "reduce its width before sharing its layers")
        return (*self.rejected, narrower)

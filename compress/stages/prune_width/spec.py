"""What a recipe may say about making layers narrower."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from compress.contracts import ListOf, StageSpec
from compress.contracts.traits import (
    Rejection,
    rejects_low_rank,
    rejects_partly_shared,
    rejects_quantized,
    rejects_sparse,
)
from compress.registry import RowOf

COUNTS = ("keep_heads", "keep_feed_forward")
BUDGETS = ("ratio", "target_params", "target_flops", "target_latency")
WIDTHS = ("hidden", "head_width")


class Spec(StageSpec):
    """Take heads, feed-forward neurons, channels of heads or of the hidden states out of the model before this stage,
    or out of the teacher when it is the first."""

    reads: ClassVar[frozenset[str]] = frozenset({"data", "teacher"})
    reads_teacher: ClassVar[bool] = True
    timed: ClassVar[bool] = True
    timed_by: ClassVar[tuple[str, ...]] = ("target_latency",)
    rejected: ClassVar[tuple[Rejection, ...]] = (
        rejects_quantized("cutting it"), rejects_sparse("cutting it"), rejects_low_rank("cutting it")
    )  # fmt: skip
    milestone: ClassVar[str | None] = "after cutting"

    kind: Literal["prune_width"]
    importance: Annotated[Any, RowOf("compress.stages.prune_width.importance")] = Field(
        default={"kind": "surgeon"}, validate_default=True
    )
    """What tells which heads, neurons and channels are needed: a file of compress/stages/prune_width/importance."""
    keep_heads: int | ListOf[int] | None = None
    """Attention heads that stay in each layer; a list has a number for each layer."""
    keep_feed_forward: int | ListOf[int] | None = None
    """Feed-forward neurons that stay in each layer; a list has a number for each layer."""
    ratio: float | None = Field(default=None, gt=0, lt=1)
    """Share of heads and of feed-forward neurons that goes; uneven: of their operations."""
    target_params: float | None = Field(default=None, gt=0)
    """Parameters that are left at most, embeddings and heads included; up to 1: as a share of the model's."""
    target_flops: float | None = Field(default=None, gt=0)
    """Operations of one sequence of `evaluation.latency.length` tokens at most; up to 1: as a share of the model's."""
    target_latency: float | None = Field(default=None, gt=0)
    """Milliseconds on this device at most, timed as `evaluation.latency` says: median of the model made ready for
    inference."""
    hidden: int | None = Field(default=None, ge=1)
    """Channels of the hidden states that stay."""
    head_width: int | None = Field(default=None, ge=1)
    """Channels of each head that stay; null: hidden / heads where that was so and only `hidden` is said, else all."""
    stream: Literal["directions", "channels"] = "directions"
    """How hidden states lose channels. directions: they are turned to their principal directions, and the last ones go
    (SliceGPT, 2401.15024); channels: those that the importance ranks lowest go, along torch-pruning's dependency graph
    (2301.12900), weights are else untouched."""
    uneven: bool = False
    """Each layer its own numbers, by ranking all layers together; a stock Hugging Face class cannot load that."""
    refit: bool | None = None
    """Fit output matrices by least squares to what was cut; null: as the importance does."""
    way: float = Field(default=1.0, gt=0, le=1)
    """How much of the way from the teacher's size to the target is gone: steps of a schedule have less than 1."""
    rows: int = Field(default=2048, ge=1, le=10_000_000)
    """Training texts that widths are judged by and matrices are fitted on, spread over the split."""

    @field_validator("keep_heads", "keep_feed_forward")
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
            raise ValueError(f"say what goes: one of {', '.join((*COUNTS, *WIDTHS, *BUDGETS))}")
        if len(budgets) > 1 or (budgets and counts):
            raise ValueError(f"{' and '.join(budgets + counts)} each say how many heads and neurons go; leave one")
        return self

    def rejects(self) -> tuple[Rejection, ...]:
        if not (self.hidden or self.head_width):
            return self.rejected
        narrower = rejects_partly_shared("so channels cannot go", "make it narrower first and share it then")
        return (*self.rejected, narrower)

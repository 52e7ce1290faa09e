"""Recipe keys of stage drop_tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from compress.contracts import ListOf, StageSpec
from compress.contracts.confidence import CONFIDENCE, LEAST, MOST
from compress.contracts.traits import Form, Rejection, rejects_dropped_tokens, rejects_static
from compress.encoder.config.token_dropping import ALL


class Spec(StageSpec):
    """Drop tokens between the layers of the model of the stage before, or of the teacher in the first stage: after the
    attention of a layer only the tokens that receive most of it go on, and the first one."""

    reads: ClassVar[frozenset[str]] = frozenset({"data", "teacher"})
    forms: ClassVar[tuple[Form, ...]] = ("drops_tokens",)
    timed: ClassVar[bool] = True
    timed_by: ClassVar[tuple[str, ...]] = ("max_drop",)
    rejected: ClassVar[tuple[Rejection, ...]] = (
        rejects_static("drop tokens between"),
        rejects_dropped_tokens("choosing them again"),
    )
    milestone: ClassVar[str | None] = "after dropping tokens"

    kind: Literal["drop_tokens"]
    max_drop: float | None = Field(default=None, ge=0, le=100)
    """Maximum drop of accuracy in percentage points, before recovery training: the fastest plan is chosen that is
    proven to be within it on validation rows. It needs one label per text."""
    confidence: float = Field(default=CONFIDENCE, ge=LEAST, le=MOST)
    """Of max_drop: probability in percent with which the loss on other texts like these is within it."""
    keep_tokens: int | ListOf[int] | None = None
    """Percentage of a text's tokens that goes on after the first layer, or after each layer from the first to the last;
    nothing is measured."""
    rows: int = Field(default=256, ge=1, le=10_000_000)
    """Of max_drop: number of validation texts on which the loss of each layer's choice is measured."""

    @field_validator("keep_tokens")
    @classmethod
    def _percentages(cls, kept: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        if kept is None:
            return None
        each = _list(kept)
        if not all(1 <= percent <= ALL for percent in each):
            raise ValueError(f"found {format_plan(each)}, allowed: percentages from 1 to {ALL}")
        if list(each) != sorted(each, reverse=True):
            raise ValueError(f"found {format_plan(each)}, but a layer cannot keep more tokens than the layer before it")
        if min(each, default=ALL) == ALL:
            raise ValueError(f"all tokens would be kept; give a percentage below {ALL}")
        return kept

    @model_validator(mode="after")
    def _one_target(self) -> Spec:
        if (self.max_drop is None) == (self.keep_tokens is None):
            raise ValueError("set exactly one of max_drop and keep_tokens")
        return self

    @property
    def percentages(self) -> tuple[int, ...]:
        """`keep_tokens`: a single one for all layers, or one for each; empty where it is not set."""
        return () if self.keep_tokens is None else _list(self.keep_tokens)


def format_plan(percentages: Sequence[int]) -> str:
    """As people read it."""
    return ", ".join(map(str, percentages))


def _list(kept: int | tuple[int, ...]) -> tuple[int, ...]:
    return (kept,) if isinstance(kept, int) else kept

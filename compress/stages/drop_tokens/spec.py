"""Recipe keys of stage drop_tokens."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from compress.contracts import ListOf, StageSpec
from compress.contracts.traits import Form, Rejection, rejects_dropped_tokens, rejects_static


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
    """Maximum drop of the main metric on validation, in percentage points, before recovery training: the fastest shares
    of tokens within it are chosen."""
    kept_tokens: int | ListOf[int] | None = None
    """Percentage of a text's tokens that goes on after the first layer, or after each layer from the first to the last;
    nothing is measured."""
    rows: int = Field(default=256, ge=1, le=10_000_000)
    """Number of validation texts on which the loss of each layer's choice is measured."""

    @model_validator(mode="after")
    def _one_target(self) -> Spec:
        if (self.max_drop is None) == (self.kept_tokens is None):
            raise ValueError("set exactly one of max_drop and kept_tokens")
        return self

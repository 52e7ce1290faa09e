"""What a recipe may say about layers that come together while a student trains."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from compress.contracts import Frozen, ListOf
from compress.errors import describe


class _Ramp(Frozen):
    begin: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps after which it begins."""
    end: float = Field(default=0.8, gt=0, le=1)
    """Share of the steps after which it is complete; a line between."""

    @model_validator(mode="after")
    def _forward(self) -> Any:
        if self.begin >= self.end:
            raise ValueError(f"begin {self.begin:g} is not before end {self.end:g}")
        return self


class ShrinkSpec(_Ramp):
    """Residuals are multiplied by a factor that falls from 1 to 0, and the model that is kept has none.

    Validation, and the choice of the best weights by it, is of the model without residuals, as it will be kept.
    """


class PullSpec(_Ramp):
    """A penalty on the distance of layers that a share stage after this one will merge.

    Of each of their matrices the sum of |W - mean|^2 over the layers of a group, divided by that of |W|^2: 0 for equal
    layers, 1 - 1/n for n that have nothing in common. The penalty is the sum over matrices and groups; told is the
    mean.
    """

    groups: int | ListOf[ListOf[int]]
    """How many runs of neighbouring layers come together; or the groups themselves: [[0, 1], [2, 3]]."""
    weight: float = Field(default=10.0, gt=0)
    """Of the penalty beside the objectives, once its ramp is complete. With 10 it pulls at each weight of a MiniLM as
    hard as the loss of one step does."""

    @field_validator("groups", mode="before")
    @classmethod
    def _groups(cls, value: Any) -> Any:
        """By hand, since a union of types would give an error for each of them."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        if isinstance(value, list | tuple) and value and all(_is_group(group) for group in value):
            return tuple(tuple(group) for group in value)
        raise ValueError(f"found {describe(value)}, allowed: a number from 1, or lists of layers, [[0, 1], [2, 3]]")


def _is_group(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)

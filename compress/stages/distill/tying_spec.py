"""Recipe keys of layer tying during distillation: `proximity:` and `shrink_residuals:`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from compress.contracts import Frozen, ListOf
from compress.errors import describe


class _Ramp(Frozen):
    begin: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the steps after which the ramp begins."""
    end: float = Field(default=0.8, gt=0, le=1)
    """Fraction of the steps after which the ramp is complete; linear in between."""

    @model_validator(mode="after")
    def _forward(self) -> Any:
        if self.begin >= self.end:
            raise ValueError(f"begin {self.begin:g} is not before end {self.end:g}")
        return self


class ShrinkSpec(_Ramp):
    """Multiply the low-rank residuals by a factor that falls from 1 to 0; the saved model has no residuals.

    Validation and the selection of the best weights use the model without residuals, as it is saved.
    """


class ProximitySpec(_Ramp):
    """Proximity regularizer: a penalty on the distance of layers that a later share stage ties.

    For each matrix, the sum of |W - mean|^2 over the layers of a group divided by the sum of |W|^2: 0 for equal layers,
    1 - 1/n for n unrelated layers. The penalty is the sum over matrices and groups; the mean is logged.
    """

    groups: int | ListOf[ListOf[int]]
    """Number of groups of neighbouring layers, or the groups themselves: [[0, 1], [2, 3]]."""
    weight: float = Field(default=10.0, gt=0)
    """Weight of the penalty in the total loss once the ramp is complete. At 10, its gradient on a MiniLM's weights is
    about as large as that of the loss of one step."""

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

"""Recipe keys of stage quantize."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from compress.contracts import StageSpec
from compress.contracts.traits import Form, Rejection, rejects_quantized, rejects_static
from compress.encoder.config.schemes import QuantizationSpec


class Spec(QuantizationSpec, StageSpec):
    """Post-training quantization (PTQ) of the model of the stage before, or of the teacher in the first stage.

    A distill stage with `student: null` after it is quantization-aware training, with the float model as teacher and
    training on hard labels alone as the control.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"data", "teacher"})
    forms: ClassVar[tuple[Form, ...]] = ("quantized",)
    rejected: ClassVar[tuple[Rejection, ...]] = (rejects_quantized("quantizing it again"), rejects_static("quantize"))
    milestone: ClassVar[str | None] = "PTQ"
    trained: ClassVar[str | None] = "QAT"
    embeds: ClassVar[bool] = True

    kind: Literal["quantize"]
    max_drop: float | None = Field(default=None, ge=0, le=100)
    """Maximum drop of the main metric on validation against the float model, in percentage points: modules fall back,
    the most sensitive first, until it holds. Default: no module falls back."""
    fall_back: Literal["16-bit", "float"] = "16-bit"
    """What modules fall back to. 16-bit: the matrix or table is stored as int16 with one scale per row, and computed
    in floats.  float: not quantized."""
    sensitivity: bool = True
    """Measure the sensitivity of each module: KL divergence from the float model when only this module is quantized."""
    scan_rows: int = Field(default=128, ge=1, le=1_000_000)
    """Number of the `rows` on which the sensitivity scan compares outputs."""

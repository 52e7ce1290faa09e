"""What a recipe may say about quantizing a fine-tuned encoder."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from compress.contracts import StageSpec
from compress.contracts.traits import Form, Rejection, rejects_quantized
from compress.encoder.config.schemes import QuantizationSpec


class Spec(QuantizationSpec, StageSpec):
    """Quantize the model before this stage, or the teacher when it is the first, without training (PTQ).

    A stage of kind distill with `student: null` after it trains on: quantization-aware training with the float model as
    teacher, and on hard labels alone as its control.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"data", "teacher"})
    forms: ClassVar[tuple[Form, ...]] = ("quantized",)
    rejected: ClassVar[tuple[Rejection, ...]] = (rejects_quantized("quantizing it again"),)
    milestone: ClassVar[str | None] = "PTQ"
    trained: ClassVar[str | None] = "QAT"

    kind: Literal["quantize"]
    max_drop: float | None = Field(default=None, ge=0, le=100)
    """Modules fall back, the most damaging first, until the main metric on validation loses at most so many points
    (hundredths) against the float model; null: none does."""
    fall_back: Literal["16-bit", "float"] = "16-bit"
    """What modules fall back to. 16-bit: the matrix or table is stored as int16, a scale for each row, and computed
    with in floats.  float: nothing of them is rounded."""
    sensitivity: bool = True
    """Measure what quantizing each module alone does: KL divergence of the answers from the float model's."""
    scan_rows: int = Field(default=128, ge=1, le=1_000_000)
    """Of `rows`, those that the scan compares answers on."""

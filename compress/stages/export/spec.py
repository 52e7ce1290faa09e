"""What a recipe may say about writing a model's ONNX file."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from compress.contracts import StageSpec


class Spec(StageSpec):
    """Write `model.onnx` beside the model before this stage, or the teacher when it is the first, checked on real rows.

    Nothing comes after it: the file holds the weights as they are then. Needs the extra `onnx`.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"data", "teacher"})
    closes: ClassVar[str | None] = "a file holds the weights as they were when it was written"
    writes_onnx: ClassVar[bool] = True

    kind: Literal["export"]
    opset: int = Field(default=17, ge=17, le=22)
    """Version of the ONNX operators; the oldest is what the oldest runtimes read."""
    portable: bool = False
    """Of a quantized model: standard operators alone, the same numbers, slower; else onnxruntime's fused product."""
    rows: int = Field(default=256, ge=1, le=100_000)
    """Validation texts that the file must answer as the model does."""

"""Recipe keys of stage export."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from compress.contracts import StageSpec


class Spec(StageSpec):
    """Write `model.onnx` for the model of the stage before, or the teacher in the first stage, and check it on real
    rows.

    Must be the last stage, because the file holds the final weights. Needs the extra `onnx`.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"data", "teacher"})
    closes: ClassVar[str | None] = "a file holds the weights as they were when it was written"
    writes_onnx: ClassVar[bool] = True
    embeds: ClassVar[bool] = True

    kind: Literal["export"]
    opset: int = Field(default=17, ge=17, le=22)
    """ONNX opset version; lower versions run on older runtimes."""
    portable: bool = False
    """For a quantized model: use standard ONNX operators only (same numbers, slower) instead of ONNX Runtime's fused
    matrix product."""
    rows: int = Field(default=256, ge=1, le=100_000)
    """Number of validation texts on which the outputs of file and model must match."""

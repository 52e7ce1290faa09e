"""How an ONNX file is opened in a runtime, wherever it is served or timed. Needs the runtime alone, no torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TELEMETRY = "openvino_telemetry"
AS_WRITTEN = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""On a processor with VNNI, OpenVINO would round the inputs of unsigned integer weights to int8 once more."""
HINTS = {"fp32": "f32", "bf16": "bf16"}
ONNXRUNTIME_PROVIDERS = ["CPUExecutionProvider"]
Source = Path | bytes
"""A file, or its content."""


def start_onnxruntime(source: Source, threads: int, providers: Sequence[Any] = ONNXRUNTIME_PROVIDERS) -> Any:
    """An onnxruntime session, on the CPU unless other providers are named. Raises ImportError without onnxruntime."""
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    given = source if isinstance(source, bytes) else str(source)
    session: Any = runtime.InferenceSession(given, options, providers=list(providers))
    session._model_bytes = None  # it would hold the content once more, to open it on the CPU where a GPU fails
    session.disable_fallback()
    return session


def set_up_openvino(threads: int, precision: str = "fp32") -> dict[str, Any]:
    """How OpenVINO compiles a model. precision: of what the file computes in floats; by itself OpenVINO would take bf16
    wherever the processor has it."""
    return {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": HINTS[precision],
        **AS_WRITTEN,
    }


def import_openvino() -> Any:
    """The package, imported without its telemetry. Raises ImportError without openvino.

    `import openvino` would send an event over the network and leave files in the user's home, without a question.
    """
    absent = {TELEMETRY: None} if TELEMETRY not in sys.modules else {}
    sys.modules.update(absent)  # type: ignore[arg-type]  # None makes an import fail, which openvino is prepared for
    try:
        import openvino
    finally:
        for name in absent:
            del sys.modules[name]
    return openvino

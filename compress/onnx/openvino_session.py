"""The exported file in OpenVINO: the same `model.onnx`, read by OpenVINO itself."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from compress.onnx.axes import INT8_PRODUCTS
from compress.onnx.runtimes import make_missing_error
from compress.onnx.session import FileSession, unreadable
from compress.onnx.start import AS_WRITTEN, Source, import_openvino, set_up_openvino
from evaluation.cost.cpu import saturates

FILES = ("openvino_model.xml", "openvino_model.bin")
"""Of OpenVINO's own form of a model, by the names that its tools look for."""


class OpenVinoSession(FileSession):
    """On the CPU with `threads` threads, None for torch's number of them.

    precision: of what the file computes in floats. OpenVINO itself would take bf16 wherever the processor has it.
    Where int8 products of a file may overflow on this processor (see `OnnxSession`), they are computed in floats.
    Raises UserError where openvino is not installed or cannot read the file.
    """

    def __init__(
        self, source: Source, *, threads: int | None = None, precision: Literal["fp32", "bf16"] = "fp32"
    ) -> None:
        openvino = _openvino()
        settings = set_up_openvino(threads or torch.get_num_threads(), precision)
        try:
            core = openvino.Core()
            model = core.read_model(source if isinstance(source, bytes) else str(source))
            # Names come from the file: the compiled model's outputs may carry those of nodes it put in their place.
            self.inputs = [port.get_any_name() for port in model.inputs]
            self.outputs = [port.get_any_name() for port in model.outputs]
            self.per_token = [_per_token(port.get_partial_shape()) for port in model.outputs]
            if saturates() and not _is_exact(model):
                settings["LP_TRANSFORMS_MODE"] = False
            self._request = core.compile_model(model, "CPU", settings).create_infer_request()
        except RuntimeError as error:
            raise unreadable("openvino", source, error) from error

    def infer(self, feed: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        found = self._request.infer(dict(feed), share_inputs=True)
        return [found[i] for i in range(len(self.outputs))]


def written_for_openvino(content: bytes) -> dict[str, bytes]:
    """OpenVINO's own form of an ONNX file: `FILES` by name, its numbers as they are, and `AS_WRITTEN` for every program
    that loads it. Raises UserError where openvino is not installed or cannot read the file."""
    openvino = _openvino()
    with tempfile.TemporaryDirectory() as scratch:
        first = Path(scratch) / FILES[0]
        try:
            model = openvino.Core().read_model(content)
            for name, value in AS_WRITTEN.items():
                model.set_rt_info(value, ["runtime_options", name])
            openvino.serialize(model, str(first))
        except RuntimeError as error:
            raise unreadable("openvino", content, error) from error
        return {name: (Path(scratch) / name).read_bytes() for name in FILES}


def _openvino() -> Any:
    try:
        return import_openvino()
    except ImportError as error:
        raise make_missing_error(error, "openvino") from error


def _is_exact(model: Any) -> bool:
    """Whether the file states that its integer products are exact on every processor."""
    return bool(model.has_rt_info(["framework", INT8_PRODUCTS]))


def _per_token(shape: Any) -> bool:
    """Whether an output is (B, L, ..): OpenVINO knows that a dimension is dynamic, not what the file calls it."""
    return len(shape) > 1 and shape[1].is_dynamic

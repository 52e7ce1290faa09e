"""What sentence-transformers' backend for ONNX Runtime does, by the calls that it and optimum make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class StandIn(torch.nn.Module):
    """Takes the place of the BERT of transformers inside a model of sentence-transformers.

    compute: input arrays by name → the array that BERT's `output` has.
    """

    def __init__(self, config: Any, output: str, compute: Callable[[Mapping[str, np.ndarray]], np.ndarray]) -> None:
        super().__init__()
        self.config, self._output, self._compute = config, output, compute

    def forward(self, **inputs: Any) -> Any:
        arrays = {name: inputs[name].numpy() for name in INPUTS}
        return SimpleNamespace(**{self._output: torch.from_numpy(self._compute(arrays))})


def export(model: torch.nn.Module, output: str, file: Path, varying: Mapping[int, str]) -> Path:
    """A BERT of transformers as an ONNX file with one output, by torch's exporter from traces. varying: axes of it."""
    if not file.exists():
        example = tuple(torch.ones(2, 8, dtype=torch.long) for _ in INPUTS)
        axes = {**{name: {0: "batch", 1: "length"} for name in INPUTS}, output: varying}
        torch.onnx.export(
            _OneOutput(model, output).eval(), example, str(file), input_names=list(INPUTS), output_names=[output],
            opset_version=17, dynamic_axes=axes, dynamo=False,
        )  # fmt: skip
    return file


def quantize(floats: Path, file: Path) -> Path:
    """`export_dynamic_quantized_onnx_model(model, "avx512_vnni", ...)`."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    if not file.exists():
        options = {"WeightSymmetric": True, "ActivationSymmetric": False, "EnableSubgraph": False}
        quantize_dynamic(floats, file, per_channel=True, weight_type=QuantType.QInt8, extra_options=options)
    return file


def open_session(file: Path, threads: int) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """The file in ONNX Runtime: input arrays by name → its output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    read = {one.name for one in session.get_inputs()}

    def compute(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.asarray(session.run(None, {name: arrays[name] for name in INPUTS if name in read})[0])

    return compute


class _OneOutput(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(**dict(zip(INPUTS, inputs, strict=True))), self.output)

"""ONNX files whose int8 products may overflow on processors without VNNI, rewritten so that they cannot.

Earlier versions of this program and other writers store signed weights of the whole range. Stored as unsigned bytes
with a zero point of 128 they are the same numbers, and onnxruntime's kernels for two unsigned operands are exact
everywhere. (Its own switch for this, session.x64quantprecision, fails on matrices that several layers read and on
scales for each row.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from compress.onnx.runtimes import make_missing_error
from compress.quantizers._saturation import MIDDLE

ZERO_POINT = {"MatMulInteger": (1, 3), "MatMulIntegerToFloat": (1, 5), "DequantizeLinear": (0, 2)}
"""Operator → which of its inputs are the weights and their zero point."""


def rewrite_as_unsigned(source: Path | bytes) -> bytes:
    """The file with unsigned weights in place of signed ones. Raises UserError where the package onnx is missing."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise make_missing_error(error) from error
    model = onnx.load_model_from_string(source) if isinstance(source, bytes) else onnx.load_model(str(source))
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    added: dict[str, onnx.TensorProto] = {}

    def store(name: str, values: np.ndarray) -> str:
        added[name] = numpy_helper.from_array(values, name)
        return name

    for node in graph.node:
        if node.op_type not in ZERO_POINT:
            continue
        weights, zero = ZERO_POINT[node.op_type]
        name = node.input[weights]
        if name not in stored or stored[name].data_type != onnx.TensorProto.INT8:
            continue
        codes = numpy_helper.to_array(stored[name]).astype(np.int16)
        if codes.ndim != 2:
            continue
        node.input.extend([""] * (zero + 1 - len(node.input)))
        given = node.input[zero]
        if given and given not in stored:
            continue
        if given:
            middle = numpy_helper.to_array(stored[given]).astype(np.int16) + MIDDLE
        else:  # which has the shape of the scale where there is one for each row
            scale = stored.get(node.input[1]) if node.op_type == "DequantizeLinear" else None
            middle = np.full([] if scale is None else list(scale.dims), MIDDLE)
        node.input[weights] = store(f"{name}_unsigned", (codes + MIDDLE).astype(np.uint8))
        node.input[zero] = store(f"{node.name or name}_zero_point", middle.astype(np.uint8))
    graph.initializer.extend(added.values())
    read = {name for node in graph.node for name in node.input}
    for tensor in [t for t in graph.initializer if t.name not in read]:
        graph.initializer.remove(tensor)
    return model.SerializeToString()

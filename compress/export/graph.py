"""An ONNX graph, written node by node: every tensor of the model once, whatever uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compress.export.axes import BATCH, LENGTH
from compress.export.runtimes import missing

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    raise missing(error) from error

OLDEST_OPSET = 17  # the first with LayerNormalization
NEWEST_OPSET = 22
OPSET = 20  # the first with Gelu
IR_VERSION = 10
BOOL, FLOAT = TensorProto.BOOL, TensorProto.FLOAT

Value = str
"""The name of what a node gives."""


class Graph:
    """Collects nodes and initializers. Methods named as ONNX operators add a node and return what it gives."""

    def __init__(self, opset: int = OPSET) -> None:
        self.opset = opset
        self.stored: set[int] = set()
        """`data_ptr` of every tensor of the model that was written."""
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._weights: dict[tuple[int, bool], Value] = {}
        self._constants: dict[tuple[Any, ...], Value] = {}

    def node(self, kind: str, inputs: Sequence[Value], count: int = 1, **attributes: Any) -> list[Value]:
        names = [f"{kind}_{len(self._nodes)}" + (f"_{i}" if count > 1 else "") for i in range(count)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], **attributes))
        return names

    def op(self, kind: str, *inputs: Value, **attributes: Any) -> Value:
        return self.node(kind, inputs, **attributes)[0]

    def weight(self, name: str, tensor: Tensor, *, transposed: bool = False) -> Value:
        """A tensor of the model, stored once however often it is asked for."""
        key = (tensor.data_ptr(), transposed)
        if key not in self._weights:
            self.stored.add(tensor.data_ptr())
            array = tensor.detach().to("cpu", torch.float32).numpy()
            array = np.ascontiguousarray(array.T if transposed else array)
            self._initializers.append(numpy_helper.from_array(array, name))
            self._weights[key] = name
        return self._weights[key]

    def constant(self, values: Any, dtype: type = np.float32) -> Value:
        array = np.asarray(values, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._initializers.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def integers(self, *values: int) -> Value:
        """A list of int64, as shapes, axes and bounds are given."""
        return self.constant(values, np.int64)

    def named(self, value: Value, name: str) -> Value:
        """`value` under a name that the file's users see."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        return name

    def model(
        self, inputs: Sequence[Value], outputs: Sequence[tuple[Value, Sequence[str | int]]], notes: dict[str, str]
    ) -> onnx.ModelProto:
        """The file's content: int64 inputs (batch, length), fp32 outputs of the given shapes, notes as metadata."""
        graph = helper.make_graph(
            self._nodes,
            "compress",
            [helper.make_tensor_value_info(name, TensorProto.INT64, [BATCH, LENGTH]) for name in inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in outputs],
            self._initializers,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            producer_name="compress",
            ir_version=IR_VERSION,
        )
        helper.set_model_props(model, notes)
        return model

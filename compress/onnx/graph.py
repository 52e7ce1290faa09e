"""An ONNX graph, written node by node: every tensor of the model once, whatever uses it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compress.onnx.axes import BATCH, EXACT, INT8_PRODUCTS, LENGTH
from compress.onnx.runtimes import make_missing_error

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    raise make_missing_error(error) from error

OLDEST_OPSET = 17  # the first with LayerNormalization
NEWEST_OPSET = 22
OPSET = OLDEST_OPSET  # gelu is five operators before opset 20, which onnxruntime and OpenVINO compute as one
BOOL, FLOAT, INT8, INT64 = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT64

MICROSOFT = "com.microsoft"
"""The domain of operators of onnxruntime's own, of which OpenVINO knows some."""

Value = str
"""The name of what a node gives."""
Output = tuple[Value, Sequence[str | int]]
"""A value and its shape, dynamic dimensions by name."""


class Graph:
    """Collects nodes and initializers. Methods named as ONNX operators add a node and return what it gives."""

    def __init__(self, opset: int = OPSET) -> None:
        self.opset = opset
        self.stored: set[int] = set()
        """`data_ptr` of every tensor of the model that was written."""
        self._nodes: list[onnx.NodeProto] = []
        self._domains = {""}
        self._initializers: list[TensorProto] = []
        self._named = self._stored = 0
        self._weights: dict[tuple[int, bool], Value] = {}
        self._constants: dict[tuple[Any, ...], Value] = {}

    def node(
        self, kind: str, inputs: Sequence[Value], count: int = 1, domain: str = "", **attributes: Any
    ) -> list[Value]:
        names = [f"{kind}_{self._named}" + (f"_{i}" if count > 1 else "") for i in range(count)]
        self._named += 1
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], domain=domain, **attributes))
        self._domains.add(domain)
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

    def constant(self, values: Any, dtype: type = np.float32, name: str = "") -> Value:
        """Numbers, stored once however often they are asked for. name: of what they say, for people."""
        array = np.asarray(values, dtype=dtype, order="C")
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self._constants:
            name = name or f"constant_{self._stored}"
            self._stored += 1
            self._initializers.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def integers(self, *values: int) -> Value:
        """A list of int64, as shapes, axes and bounds are given."""
        return self.constant(values, np.int64)

    def largest(self, x: Value, *, keep: bool) -> Value:
        """Along the last dimension, which stays with `keep`."""
        if self.opset >= 18:
            return self.op("ReduceMax", x, self.integers(-1), keepdims=int(keep))
        return self.op("ReduceMax", x, axes=[-1], keepdims=int(keep))

    def choose(self, condition: Value, write: Callable[[], Value], other: Value) -> Value:
        """fp32: what `write` gives where the condition (one bool) holds, else `other`.

        `write` adds nodes and weights that are inside a branch: it reads what is there already, and nothing may read
        what it adds but its own result.
        """
        kept = self._nodes, self._initializers, dict(self._weights), dict(self._constants)
        self._nodes, self._initializers = [], []
        held = self._branch(write())
        self._nodes, self._initializers = [], []
        passed = self._branch(self.op("Identity", other))
        self._nodes, self._initializers, self._weights, self._constants = kept
        return self.op("If", condition, then_branch=held, else_branch=passed)

    def _branch(self, value: Value) -> onnx.GraphProto:
        """What was written since, as a graph of its own with one value."""
        given = [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)]
        return helper.make_graph(self._nodes, f"branch_{value}", [], given, self._initializers)

    def name_value(self, value: Value, name: str) -> Value:
        """`value` under a name that the file's users see."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        return name

    def model(self, inputs: Sequence[Value], outputs: Sequence[Output], notes: dict[str, str]) -> onnx.ModelProto:
        """The file's content: int64 inputs (batch, length), fp32 outputs of the given shapes, notes as metadata."""
        given = [helper.make_tensor_value_info(name, TensorProto.INT64, [BATCH, LENGTH]) for name in inputs]
        return self.model_of(given, outputs, notes)

    def model_of(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[Output], notes: dict[str, str]
    ) -> onnx.ModelProto:
        """The same with inputs of any type and shape."""
        graph = helper.make_graph(
            self._nodes,
            "compress",
            list(inputs),
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in outputs],
            self._initializers,
        )
        used = [helper.make_opsetid(domain, 1 if domain else self.opset) for domain in sorted(self._domains)]
        oldest = helper.find_min_ir_version_for(used, ignore_unknown=True)  # older runtimes refuse a newer one
        model = helper.make_model(graph, opset_imports=used, producer_name="compress", ir_version=oldest)
        helper.set_model_props(model, {INT8_PRODUCTS: EXACT, **notes})
        return model

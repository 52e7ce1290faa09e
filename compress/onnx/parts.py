"""The smallest modules of a model as nodes of a graph, float or quantized."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from compress.encoder.integers.fake_quantized import QuantizedEmbedding, QuantizedLinear, QuantizedSharedLinear
from compress.encoder.modules.layers import LowRankLinear
from compress.encoder.modules.tied import SharedLinear, TiedNorm
from compress.onnx.graph import Graph, Value
from compress.onnx.integers import Integers

Pick = Callable[[Value], Value]
"""A table (rows, ..) → some of its rows."""


class Parts:
    """Writes into `graph`. portable: see `Integers`."""

    def __init__(self, graph: Graph, *, portable: bool = False) -> None:
        self.graph, self.integers = graph, Integers(graph, portable)

    def linear(self, x: Value, part: nn.Module, name: str) -> Value:
        """x (.., in) → (.., out), with bias and residual."""
        if isinstance(part, LowRankLinear):
            return self.linear(self.linear(x, part.inner, name + "inner."), part.outer, name + "outer.")
        assert isinstance(part, nn.Linear | SharedLinear)
        g = self.graph
        if isinstance(part, QuantizedLinear | QuantizedSharedLinear):
            y = self.integers.product(x, part, name + "weight")
        else:
            y = g.op("MatMul", x, g.weight(name + "weight", part.weight, transposed=True))
        if part.bias is not None:
            y = g.op("Add", y, g.weight(name + "bias", part.bias))
        if isinstance(part, SharedLinear) and part.rank:
            inner = g.op("MatMul", x, g.weight(name + "residual_down", part.residual_down, transposed=True))
            own = g.op("MatMul", inner, g.weight(name + "residual_up", part.residual_up, transposed=True))
            y = g.op("Add", y, own)
        return y

    def rows(self, part: nn.Module, name: str, pick: Pick) -> Value:
        """Rows of an embedding table."""
        if isinstance(part, QuantizedEmbedding):
            return self.integers.rows(part, name, pick)
        return pick(self.graph.weight(name, part.weight))  # type: ignore[arg-type]

    def matrix(self, part: nn.Module, name: str, *, transposed: bool) -> Value:
        """A whole matrix (out, in) or table (rows, E), or its transpose, as a head multiplies with it."""
        if isinstance(part, QuantizedEmbedding | QuantizedLinear | QuantizedSharedLinear):
            return self.integers.matrix(part.integers(), name, transposed=transposed)
        found = self.graph.weight(name, part.weight)  # type: ignore[arg-type]
        return self.graph.op("Transpose", found, perm=[1, 0]) if transposed else found

    def norm(self, x: Value, part: nn.Module, name: str) -> Value:
        if isinstance(part, nn.Identity):
            return x
        assert isinstance(part, nn.LayerNorm | TiedNorm)
        g = self.graph
        bias: list[Tensor] = [] if part.bias is None else [part.bias]
        inputs = [x, g.weight(name + "weight", part.weight), *(g.weight(name + "bias", b) for b in bias)]
        return g.op("LayerNormalization", *inputs, axis=-1, epsilon=part.eps)

    def activation(self, x: Value, name: str) -> Value:
        """Gelu is written with the division that onnxruntime looks for: it computes these operators, and the bias
        before them, as one."""
        g = self.graph
        if name == "relu":
            return g.op("Relu", x)
        if name == "silu":
            return g.op("Mul", x, g.op("Sigmoid", x))
        tanh = name == "gelu_new"
        if g.opset >= 20:
            return g.op("Gelu", x, approximate="tanh" if tanh else "none")
        half = g.op("Mul", x, g.constant(0.5))
        if tanh:
            cube = g.op("Mul", g.op("Mul", x, x), x)
            inner = g.op("Add", x, g.op("Mul", cube, g.constant(0.044715)))
            inner = g.op("Tanh", g.op("Mul", inner, g.constant((2 / np.pi) ** 0.5)))
        else:
            inner = g.op("Erf", g.op("Div", x, g.constant(2**0.5)))
        return g.op("Mul", half, g.op("Add", inner, g.constant(1.0)))

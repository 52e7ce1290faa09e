"""The smallest modules as nodes, each run alone, and what a model is said to compute in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from compress.encoder.integers.fake_quantized import QuantizedEmbedding
from compress.errors import UserError

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from compress.onnx import precision  # noqa: E402
from compress.onnx.graph import FLOAT, Graph  # noqa: E402
from compress.onnx.heads import HeadWriter  # noqa: E402
from compress.onnx.parts import Parts  # noqa: E402

X = torch.linspace(-4, 4, 24).reshape(2, 3, 4)


def computed(write: Any, opset: int = 20) -> np.ndarray:
    """What the nodes that `write(parts, x)` adds make of X."""
    graph = Graph(opset)
    y = write(Parts(graph), "x")
    given = [onnx.helper.make_tensor_value_info("x", FLOAT, X.shape)]
    model = graph.model_of(given, [(y, ("a", "b", "c"))], {})
    return runtime.InferenceSession(model.SerializeToString()).run(None, {"x": X.numpy()})[0]


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize(
    ("name", "function"),
    [("gelu", F.gelu), ("gelu_new", lambda x: F.gelu(x, approximate="tanh")), ("relu", F.relu), ("silu", F.silu)],
)
def test_activations_in_old_and_new_opsets(name: str, function: Any, opset: int) -> None:
    found = computed(lambda parts, x: parts.activation(x, name), opset)
    np.testing.assert_allclose(found, function(X).numpy(), atol=2e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_and_norms_with_and_without_a_bias(bias: bool) -> None:
    torch.manual_seed(0)
    linear, norm = nn.Linear(4, 5, bias=bias), nn.LayerNorm(4, eps=1e-3, bias=bias)
    norm.weight.data.normal_()
    for module, name in ((linear, "linear"), (norm, "norm")):
        found = computed(lambda parts, x, m=module, n=name: getattr(parts, n)(x, m, f"{n}."))
        np.testing.assert_allclose(found, module(X).detach().numpy(), atol=2e-6)


def test_a_norm_that_does_nothing_adds_no_node() -> None:
    parts = Parts(Graph())
    assert parts.norm("x", nn.Identity(), "norm.") == "x"


@pytest.mark.parametrize("transposed", [True, False])
def test_a_whole_matrix_and_its_transpose(transposed: bool) -> None:
    linear = nn.Linear(4, 4)
    wide = linear.weight.T if transposed else linear.weight

    def write(parts: Parts, x: str) -> str:
        return parts.graph.op("MatMul", x, parts.matrix(linear, "m", transposed=transposed))

    np.testing.assert_allclose(computed(write), (X @ wide).detach().numpy(), atol=2e-6)


def test_a_head_that_no_rule_writes_is_named() -> None:
    model: Any = SimpleNamespace(heads={"task": nn.Linear(4, 2)}, head_configs={"task": None})
    with pytest.raises(UserError, match=r"heads\.task: the ONNX writer does not support Linear"):
        HeadWriter(model, Parts(Graph())).head("task", "x")


class Table(QuantizedEmbedding):
    """Without weights."""

    def __init__(self, bits: int) -> None:
        nn.Module.__init__(self)
        self.weight_quantizer = said(bits)  # type: ignore[assignment]


def said(bits: int, dynamic: bool | None = None) -> Any:
    return SimpleNamespace(scheme=SimpleNamespace(bits=bits, dynamic=dynamic))


def matrix(bits: int, dynamic: bool | None = None) -> Any:
    """dynamic: None where inputs are floats."""
    return SimpleNamespace(weight_quantizer=said(bits), input_quantizer=None if dynamic is None else said(8, dynamic))


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ([], "fp32"),
        ([matrix(8, True)], "int8 per-token"),
        ([matrix(8, False)] * 2 + [matrix(4)], "int8 static"),
        ([matrix(4)] * 2 + [matrix(8, True)], "int4 weights"),
        ([Table(4), Table(4), matrix(8, False)], "int8 static"),
        ([Table(4)], "int4 tables"),
    ],
)
def test_the_precision_is_that_of_most_matrices(monkeypatch: pytest.MonkeyPatch, modules: list[Any], told: str) -> None:
    monkeypatch.setattr(precision, "list_quantized_modules", lambda _: dict(enumerate(modules)))
    assert precision.precision_of(nn.Identity()) == told  # type: ignore[arg-type]

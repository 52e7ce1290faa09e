"""In which numbers a model computes, in a few words."""

from __future__ import annotations

from compress.encoder.integers.fake_quantized import QuantizedEmbedding, list_quantized_modules
from compress.encoder.modules.model import Model

FLOAT = "fp32"
"""Of a model that nobody quantized."""


def precision_of(model: Model) -> str:
    """`fp32`; `int8 per-token`, `int8 static`, `int4 weights`: bits of most matrices, and how most inputs are read."""
    modules = list(list_quantized_modules(model).values())
    if not modules:
        return FLOAT
    linear = [m for m in modules if not isinstance(m, QuantizedEmbedding)]
    bits = _usual([str(m.weight_quantizer.scheme.bits) for m in linear or modules])
    if not linear:
        return f"int{bits} tables"
    inputs = [m.input_quantizer for m in linear]  # type: ignore[union-attr]
    kinds = ["weights" if q is None else "per-token" if q.scheme.dynamic else "static" for q in inputs]
    return f"int{bits} {_usual(kinds)}"


def _usual(names: list[str]) -> str:
    return max(sorted(set(names)), key=names.count)

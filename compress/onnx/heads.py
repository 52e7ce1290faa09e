"""What sits on an encoder as nodes of a graph. Shapes: B batch, L length, D hidden, C answers, V vocabulary."""

from __future__ import annotations

import numpy as np

from compress.encoder.config.heads import Pooling
from compress.encoder.modules.heads import (
    DenseHead,
    EmbeddingHead,
    FirstTokenHead,
    MaskedLMHead,
    PooledHead,
    ReplacedTokenHead,
    TokenHead,
    TransformedHead,
)
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.onnx.axes import MASK
from compress.onnx.graph import FLOAT, Value
from compress.onnx.parts import Parts


class HeadWriter:
    """Writes the heads of `model` with `parts`."""

    def __init__(self, model: Model, parts: Parts) -> None:
        self.model, self.parts, self.graph = model, parts, parts.graph
        self.mask: Value = MASK
        """(B, L) of the rows that are read now."""

    def head(self, name: str, x: Value) -> Value:
        """What the head answers to x (B, L, D), or (B, 1, D) where that is all it reads.

        (B, C), (B, L, C), (B, L, V), or (B, L) of replaced tokens. Raises UserError for a head that no rule writes.
        """
        g, part, config = self.graph, self.model.heads[name], self.model.head_configs[name]
        linear, activation = self.parts.linear, self.parts.activation
        at = f"heads.{name}."
        if isinstance(part, TokenHead):
            return linear(x, part.classifier, at + "classifier.")
        if isinstance(part, ReplacedTokenHead):
            inner = activation(linear(x, part.dense, at + "dense."), self.model.config.activation)
            return g.op("Squeeze", linear(inner, part.classifier, at + "classifier."), g.integers(-1))
        if isinstance(part, MaskedLMHead):
            return self.vocabulary(x, part, at, config.activation)
        if isinstance(part, TransformedHead):
            read = x if config.per_token else self.read(x, config.pooling)
            inner = self.transform(read, part, at, config.activation)
            return linear(inner, part.classifier, at + "classifier.")
        if isinstance(part, PooledHead):
            return linear(self.pool(x), part.classifier, at + "classifier.")
        if isinstance(part, FirstTokenHead):
            inner = g.op("Relu", linear(self.first(x), part.pre_classifier, at + "pre_classifier."))
            return linear(inner, part.classifier, at + "classifier.")
        if isinstance(part, DenseHead):
            inner = linear(self.first(x), part.dense, at + "dense.")
            inner = g.op("Tanh", inner) if config.style == "roberta" else activation(inner, "gelu")
            return linear(inner, part.classifier, at + "classifier.")
        if isinstance(part, EmbeddingHead):
            inner = self.read(x, config.pooling)
            for number, (dense, tanh) in enumerate(zip(part.denses, part.tanh, strict=True)):
                inner = linear(inner, dense, f"{at}denses.{number}.")
                inner = g.op("Tanh", inner) if tanh else inner
            if part.normalize:
                squares = g.op("ReduceSum", g.op("Mul", inner, inner), g.integers(-1), keepdims=1)
                inner = g.op("Div", inner, g.op("Max", g.op("Sqrt", squares), g.constant(1e-12)))
            if part.truncate is None:
                return inner
            return g.op("Slice", inner, g.integers(0), g.integers(part.truncate), g.integers(-1))
        raise UserError(f"the ONNX writer does not support {type(part).__name__}", where=f"heads.{name}")

    def vocabulary(self, x: Value, part: MaskedLMHead, at: str, activation: str | None) -> Value:
        """(B, L, V): the word table, and where the projection of its rows is tied that too, read the other way."""
        g, embeddings = self.graph, self.model.encoder.embeddings
        features = self.transform(x, part, at, activation)
        if part.tied_projection:
            assert embeddings.projection is not None
            matrix = self.parts.matrix(embeddings.projection, "embeddings.projection.weight.tied", transposed=False)
            features = g.op("MatMul", features, matrix)
        table = self.parts.matrix(embeddings.word, "embeddings.word", transposed=True)
        return g.op("Add", g.op("MatMul", features, table), g.weight(at + "bias", part.bias))

    def transform(self, x: Value, part: MaskedLMHead | TransformedHead, at: str, activation: str | None) -> Value:
        inner = self.parts.linear(x, part.dense, at + "dense.")
        inner = self.parts.activation(inner, activation or self.model.config.activation)
        return self.parts.norm(inner, part.norm, at + "norm.")

    def pool(self, x: Value) -> Value:
        """(B, L, D) → (B, D): the pooler's answer."""
        pooler = self.model.encoder.pooler
        assert pooler is not None
        return self.graph.op("Tanh", self.parts.linear(self.first(x), pooler.dense, "pooler.dense."))

    def first(self, x: Value) -> Value:
        """(B, L, D) → (B, D): the first token."""
        return self.graph.op("Gather", x, self.graph.constant(0, np.int64), axis=1)

    def read(self, x: Value, pooling: Pooling) -> Value:
        """(B, L, D) → (B, D): what stands for a sequence, of its real tokens."""
        g, axis = self.graph, self.graph.integers(1)
        if pooling == "first":
            return self.first(x)
        if pooling == "last":
            last = g.op("Sub", g.op("ReduceSum", self.mask, axis, keepdims=1), axis)
            return g.op("GatherND", x, last, batch_dims=1)
        real = g.op("Unsqueeze", g.op("Cast", self.mask, to=FLOAT), g.integers(2))
        if pooling == "max":
            known = g.op("Greater", real, g.constant(0.0))
            turned = g.op("Transpose", g.op("Where", known, x, g.constant(-3e38)), perm=[0, 2, 1])
            return g.op("Squeeze", g.op("GlobalMaxPool", turned), g.integers(2))  # alike in all opsets
        if pooling == "weighted_mean":  # padding is at the end
            real = g.op("Mul", real, g.op("CumSum", real, g.constant(1, np.int64)))
        total = g.op("ReduceSum", g.op("Mul", x, real), axis, keepdims=0)
        return g.op("Div", total, g.op("ReduceSum", real, axis, keepdims=0))

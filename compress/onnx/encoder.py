"""An encoder and one head as an ONNX graph: of standard operators, but for the fused integer product.

Written from the modules, layer by layer, so that any shape that this program makes is expressed: layers of different
widths, layers that share their parameters, factorized embeddings, windows, rotary and
relative positions. Where the head reads the
first token alone the last layer computes no other token's answer, a sixth of its work. Shapes: B batch, L length, D
hidden, H heads, K head width; batch and length are dynamic. What padding holds is not defined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from compress.encoder.config.heads import HeadConfig
from compress.encoder.config.token_dropping import ALL
from compress.encoder.modules.layers import Attention, EncoderLayer, FeedForward, GlobalProjections, IdleLinear
from compress.encoder.modules.model import Model
from compress.encoder.modules.pattern import FULL, AttentionPattern
from compress.encoder.modules.relative import BiasTable, number_buckets, number_distances
from compress.errors import UserError
from compress.onnx.axes import BATCH, IDS, LENGTH, MASK, SEGMENTS, VECTOR
from compress.onnx.dropping import choose_tokens
from compress.onnx.graph import BOOL, FLOAT, INT64, NEWEST_OPSET, OLDEST_OPSET, OPSET, Graph, Value
from compress.onnx.heads import HeadWriter
from compress.onnx.parts import Parts

if TYPE_CHECKING:
    from onnx import ModelProto

UNSEEN = float(np.finfo(np.float32).min)
"""Added to the score of a token that is not seen; finite, so that a row that sees nothing is no NaN."""
LARGEST = 2**31 - 1  # bytes of a protobuf file
Turn = tuple[Value, Value]
"""Cosines and sines of rotary positions."""


def encode(
    model: Model, head: str | None, *, opset: int = OPSET, portable: bool = False, notes: dict[str, str] | None = None
) -> ModelProto:
    """The ONNX model of `model` with one of its heads, None for the bare encoder.

    portable: quantized products of standard operators alone, slower; else of one that onnxruntime and OpenVINO have.

    Inputs input_ids, attention_mask and, where there are segments, token_type_ids, (B, L) int64. Outputs: `logits`;
    `start_logits` and `end_logits` (B, L) of answer spans; of the bare encoder `last_hidden_state` (B, L, D) and, with
    a pooler, `pooler_output` (B, D).
    Raises UserError for an opset that lacks an operator, a model above 2 GiB, and for parameters that no rule here
    writes, which it names.
    """
    if model.config.is_static:
        raise UserError(
            "a static model has no ONNX file", why="it has no layers to compute",
            do="use its folder: SentenceTransformer(folder) loads it",
        )  # fmt: skip
    if not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise UserError(
            f"opset {opset} is not supported",
            where="--opset",
            why=f"layer normalization needs {OLDEST_OPSET} or newer, and the newest supported opset is {NEWEST_OPSET}",
            do=f"use --opset {min(max(opset, OLDEST_OPSET), NEWEST_OPSET)}",
        )
    size = sum(p.numel() * 4 for p in model.parameters())
    if size > LARGEST:
        raise UserError(
            f"the model is too large for one ONNX file: {size / 1e9:.1f} GB of weights",
            where="export",
            why="at most 2.1 GB",
        )
    writer = Writer(model, Graph(opset), portable=portable)
    outputs = writer.outputs(head)
    _require_written(model, head, writer)
    return writer.graph.model(writer.inputs, outputs, notes or {})


def _require_written(model: Model, head: str | None, writer: Writer) -> None:
    """Raise UserError when the graph leaves out a parameter that this head's answer may depend on."""
    used = [("encoder.", model.encoder)] + ([(f"heads.{head}.", model.heads[head])] if head else [])
    used += [("exits.", model.exits)] if head == "task" else []
    idle = [*writer.unread, *(part for part in model.modules() if isinstance(part, IdleLinear))]
    spare = {id(tensor) for part in idle for tensor in [*part.parameters(), *part.buffers()]}
    left = [
        prefix + name
        for prefix, module in used
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
        if tensor.data_ptr() not in writer.graph.stored and not name.startswith("pooler.") and id(tensor) not in spare
    ]
    if left:
        raise UserError(
            "this model has parts that the ONNX writer does not support",
            where=", ".join(left[:4]) + (f" … ({len(left)} in total)" if len(left) > 4 else ""),
            why="nothing was written",
        )


class Writer:
    """Writes `model` into `graph`, part by part."""

    def __init__(self, model: Model, graph: Graph, *, portable: bool = False) -> None:
        self.model, self.config, self.graph = model, model.config, graph
        self.parts = Parts(graph, portable=portable)
        self.heads = HeadWriter(model, self.parts)
        self.linear, self.norm, self.activation = self.parts.linear, self.parts.norm, self.parts.activation
        self.segments = self.config.segments > 1
        self.inputs = [IDS, MASK, *([SEGMENTS] if self.segments else [])]
        self.unread: list[Any] = []  # modules that no answer depends on
        self._biases: dict[AttentionPattern, Value] = {}
        self._rotations: dict[tuple[float, int], Turn] = {}
        self._relative: dict[tuple[Value, int], Value] = {}
        self._distances: Value | None = None
        self._rows: dict[tuple[bool, bool], Value] = {}
        self._firsts: dict[tuple[Value, int], Value] = {}
        self._percent: int | None = None  # of the tokens that go on after the layer that is written
        self._places: Value | None = None  # of these, once they are chosen
        g = graph
        self.length = g.op("Slice", g.op("Shape", IDS), g.integers(1), g.integers(2))  # (1,)

    # --- the whole --------------------------------------------------------------------------------------------

    def outputs(self, head: str | None) -> list[tuple[Value, list[str | int]]]:
        g, hidden = self.graph, self.config.hidden
        of = None if head is None else self.model.head_configs[head]
        if of is not None and of.exits:
            return [(g.name_value(self.answer_early(self.embeddings(), of), "logits"), [BATCH, of.labels])]
        kept = self.config.kept_tokens if head == "task" else None
        x = self.encoder(first=of is not None and of.only_first and of.kind != "embedding", kept=kept)
        if head is None:
            found = [(g.name_value(x, "last_hidden_state"), [BATCH, LENGTH, hidden])]
            if self.config.pooler:
                found.append((g.name_value(self.heads.pool(x), "pooler_output"), [BATCH, hidden]))
            return found
        kind = self.model.head_configs[head]
        if kind.kind == "question_answering":
            parts = g.node("Split", [self.heads.head(head, x), g.integers(1, 1)], 2, axis=-1)
            flat = [g.op("Squeeze", part, g.integers(-1)) for part in parts]
            names = ("start_logits", "end_logits")
            return [(g.name_value(f, n), [BATCH, LENGTH]) for f, n in zip(flat, names, strict=True)]
        if kind.kind == "embedding":  # with the states too: sentence-transformers pools these itself
            vectors = g.name_value(self.heads.head(head, x), VECTOR)
            return [(g.name_value(x, "last_hidden_state"), [BATCH, LENGTH, hidden]), (vectors, [BATCH, kind.labels])]
        shape: list[str | int] = [BATCH, LENGTH] if kind.per_token or kind.name in ("mlm", "rtd") else [BATCH]
        if kind.name != "rtd":
            shape.append(self.config.vocabulary if kind.name == "mlm" else kind.labels)
        return [(g.name_value(self.heads.head(head, x), "logits"), shape)]

    def answer_early(self, x: Value, head: HeadConfig, place: int = 0) -> Value:
        """Logits (B, C) of rows that reached exit `place` with the states x (B, L, D) of the exit before it.

        The rows that the exit is not sure of are taken out, and what follows is computed for them alone; for none,
        it is not computed.
        """
        g, done = self.graph, head.exits[place - 1].layer if place else 0
        if place == len(head.exits):
            rest = self.layers(x, range(done, self.config.depth), first=head.only_first)
            return self.heads.head(head.name, rest)
        exit = head.exits[place]
        x = self.layers(x, range(done, exit.layer))
        read = g.op("Concat", self.heads.read(x, "first"), self.heads.read(x, "mean"), axis=-1)
        early = self.linear(read, self.model.exits[place], f"exits.{place}.")
        sure = g.op("Greater", g.largest(g.op("Softmax", early, axis=-1), keep=False), g.constant(exit.threshold))
        rows = g.op("Squeeze", g.op("NonZero", g.op("Not", sure)), g.integers(0))  # (R,)

        def answer_rest() -> Value:
            self.heads.mask = g.op("Gather", self.heads.mask, rows, axis=0)
            self._biases.clear()  # they are of the mask
            late = self.answer_early(g.op("Gather", x, rows, axis=0), head, place + 1)
            return g.op("ScatterND", early, g.op("Unsqueeze", rows, g.integers(1)), late)

        return g.choose(g.op("Greater", g.op("Size", rows), g.constant(0, np.int64)), answer_rest, early)

    def encoder(self, *, first: bool = False, kept: tuple[int, ...] | None = None) -> Value:
        """(B, L, D), or (B, 1, D) with `first`: of the first token alone. kept: `config.kept_tokens` where they are
        dropped."""
        return self.layers(self.embeddings(), range(self.config.depth), first=first, kept=kept)

    def layers(self, x: Value, layers: range, *, first: bool = False, kept: tuple[int, ...] | None = None) -> Value:
        """(B, L, D) → what comes out of some layers that follow each other, the last one with the final norm; first:
        the last one computes the first token alone, (B, 1, D)."""
        config, encoder, before = self.config, self.model.encoder, ALL
        bases = config.rotary_bases or (None,) * config.depth
        for i in layers:
            group, base = config.groups[i], bases[i]
            layer = encoder.layers[group]
            assert isinstance(layer, EncoderLayer)
            turn = None if base is None else self.rotation(base, config.layers[i].head_width)
            pattern = config.patterns[i]
            one, bias = first and i == config.depth - 1, self.layer_bias(i)
            whole = self.bias(FULL) if config.global_projections and pattern.global_tokens else None
            if one and (pattern.window is not None or config.relative_bias is not None):
                bias = self.first(bias, axis=2)
            if kept is not None and not one:
                self._percent, before = None if kept[i] == before else kept[i], kept[i]
            x = self.layer(x, layer, f"layers.{group}.", bias, turn, one, whole)
            self._percent = self._places = None
        if encoder.final_norm is None or layers.stop < config.depth:
            return x
        return self.norm(x, encoder.final_norm, "final_norm.")

    def embeddings(self) -> Value:
        """(B, L, D)"""
        g, parts = self.graph, self.model.encoder.embeddings
        x = self.parts.rows(parts.word, "embeddings.word", lambda table: g.op("Gather", table, IDS))
        if parts.position is not None:
            start = g.integers(parts.position_offset)
            end = g.op("Add", self.length, start) if parts.position_offset else self.length
            rows = self.parts.rows(parts.position, "embeddings.position", lambda t: g.op("Slice", t, start, end))
            x = g.op("Add", x, rows)
        if parts.segment is not None:
            ids = SEGMENTS if self.segments else g.integers(0)
            rows = self.parts.rows(parts.segment, "embeddings.segment", lambda table: g.op("Gather", table, ids))
            x = g.op("Add", x, rows)
        norm = parts.norm
        assert norm is not None  # only a static model has none, which `encode` rejects
        if parts.projection is None:
            return self.norm(x, norm, "embeddings.norm.")
        if parts.project_first:
            x = self.linear(x, parts.projection, "embeddings.projection.")
            return self.norm(x, norm, "embeddings.norm.")
        x = self.norm(x, norm, "embeddings.norm.")
        return self.linear(x, parts.projection, "embeddings.projection.")

    # --- one layer --------------------------------------------------------------------------------------------

    def layer(
        self,
        x: Value,
        layer: EncoderLayer,
        name: str,
        bias: Value,
        turn: Turn | None,
        first: bool = False,
        whole: Value | None = None,
    ) -> Value:
        """(B, L, D) → (B, L, D), or (B, 1, D) with `first`: of the first token, which still attends to all.

        whole: the bias of the first token, where that attends by projections of its own.
        """
        g = self.graph
        if layer.pre_norm:
            read = self.norm(x, layer.attention_norm, name + "attention_norm.")
            found = self.attention(read, layer.attention, name + "attention.", bias, turn, first, whole)
            x = g.op("Add", self.rest(x, first), found)
            read = self.norm(x, layer.output_norm, name + "output_norm.")
            return g.op("Add", x, self.feed_forward(read, layer.feed_forward, name + "feed_forward."))
        found = self.attention(x, layer.attention, name + "attention.", bias, turn, first, whole)
        x = g.op("Add", self.rest(x, first), found)
        x = self.norm(x, layer.attention_norm, name + "attention_norm.")
        x = g.op("Add", x, self.feed_forward(x, layer.feed_forward, name + "feed_forward."))
        return self.norm(x, layer.output_norm, name + "output_norm.")

    def attention(
        self,
        x: Value,
        part: Attention,
        name: str,
        bias: Value,
        turn: Turn | None,
        first: bool = False,
        whole: Value | None = None,
    ) -> Value:
        """(B, L, D), or (B, 1, D) with `first`: of the first token's query alone."""
        g = self.graph
        if whole is None or part.globals is None:
            return self.linear(self.context(x, part, part, name, bias, turn, first), part.output, name + "output.")
        found = self.context(x, part, part.globals, f"{name}globals.", whole, None, True)
        if first:  # no other token's answer is computed, so nothing reads the other projections
            self.unread += [part.query, part.key, part.value]
        else:
            rest = self.context(x, part, part, name, bias, turn)
            rest = g.op("Slice", rest, g.integers(1), g.integers(np.iinfo(np.int64).max), g.integers(1))
            found = g.op("Concat", found, rest, axis=1)
        return self.linear(found, part.output, name + "output.")

    def context(
        self,
        x: Value,
        part: Attention,
        by: Attention | GlobalProjections,
        name: str,
        bias: Value,
        turn: Turn | None,
        first: bool = False,
    ) -> Value:
        """softmax(q kᵀ / √K + bias) v, as (B, L, H·K). by: what holds the projections."""
        g = self.graph
        shape = g.integers(0, 0, part.heads, part.head_width)
        asking = self.first(x) if first else x
        plain = turn is None and self.config.disentangled is None  # keys are read by the scores alone, as (B, H, K, L)
        q, k, v = (
            g.op("Transpose", g.op("Reshape", self.linear(read, p, f"{name}{n}."), shape), perm=perm)
            for n, p, read, perm in (
                ("query", by.query, asking, [0, 2, 1, 3]),
                ("key", by.key, x, [0, 2, 3, 1] if plain else [0, 2, 1, 3]),
                ("value", by.value, x, [0, 2, 1, 3]),
            )
        )
        if turn is not None:
            q, k = q if first else self.rotate(q, turn), self.rotate(k, turn)  # position 0 is turned by nothing
        scores = g.op("MatMul", q, k if plain else g.op("Transpose", k, perm=[0, 1, 3, 2]))
        terms = 1
        if self.config.disentangled is not None:
            terms += self.config.disentangled.terms
            for found in self.distance_scores(q, k, part, name, first):
                scores = g.op("Add", scores, found)
        scores = g.op("Mul", scores, g.constant((terms * part.head_width) ** -0.5))
        weights = g.op("Softmax", g.op("Add", scores, bias), axis=-1)
        context = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        context = g.op("Reshape", context, g.integers(0, 0, part.heads * part.head_width))
        if self._percent is not None:
            self.drop(weights, self._percent)
        return self.rest(context, False)

    def drop(self, weights: Value, percent: int) -> None:
        """From here on, only the tokens that receive most attention are read. weights: (B, H, L, L)."""
        g = self.graph
        # Summed in fp32: OpenVINO gives wrong answers for a single step whose lengths are an int64 sum of the mask.
        lengths = g.op("ReduceSum", g.op("Cast", MASK, to=FLOAT), g.integers(1), keepdims=1)
        lengths = g.op("Cast", lengths, to=INT64)
        chosen = choose_tokens(g, weights, self.heads.mask, lengths, percent)
        self._places, self.heads.mask = chosen.places, chosen.mask
        self._biases.clear()  # they are of the mask

    def rest(self, x: Value, first: bool) -> Value:
        """(B, L, D) → of the tokens that go on after this layer's attention."""
        if first:
            return self.first(x)
        return x if self._places is None else self.graph.op("GatherND", x, self._places, batch_dims=1)

    def feed_forward(self, x: Value, part: FeedForward, name: str) -> Value:
        g, width = self.graph, part.down.in_features
        inner = self.linear(x, part.up, name + "up.")
        if part.gated:
            inner, gate = g.node("Split", [inner, g.integers(width, width)], 2, axis=-1)
            inner = g.op("Mul", self.activation(inner, self.config.activation), gate)
        else:
            inner = self.activation(inner, self.config.activation)
        return self.linear(inner, part.down, name + "down.")

    def first(self, x: Value, axis: int = 1) -> Value:
        """What stands first along an axis, which stays."""
        if (x, axis) not in self._firsts:
            g = self.graph
            self._firsts[x, axis] = g.op("Slice", x, g.integers(0), g.integers(1), g.integers(axis))
        return self._firsts[x, axis]

    def layer_bias(self, number: int) -> Value:
        """What layer `number` adds to its scores, broadcast to (B, H, L, L)."""
        bias = self.bias(self.config.patterns[number])
        if self.config.relative_bias is None:
            return bias
        return self.add_relative(bias, self.model.encoder.bias_table(self.config.groups[number]))

    def bias(self, pattern: AttentionPattern) -> Value:
        """What is added to scores, broadcast to (B, H, L, L): 0 where a token is seen."""
        if pattern not in self._biases:
            g = self.graph
            seen = g.op("Unsqueeze", g.op("Cast", self.heads.mask, to=BOOL), g.integers(1, 2))
            if pattern.window is not None:
                seen = g.op("And", self.window(pattern), seen)
            self._biases[pattern] = g.op("Where", seen, g.constant(0.0), g.constant(UNSEEN))
        return self._biases[pattern]

    def add_relative(self, bias: Value, table: BiasTable) -> Value:
        """(B, H, L, L): a bias and that of the distances between tokens; once for layers that share a table."""
        key = (bias, table.weight.data_ptr())
        if key not in self._relative:
            g, config = self.graph, self.config.relative_bias
            assert config is not None
            most = self.config.max_positions - 1
            buckets = g.constant(number_buckets(torch.arange(-most, most + 1), config).numpy(), np.int64)
            by_distance = g.op("Gather", g.weight(f"relative_{len(self._relative)}", table.weight), buckets)
            columns = self.positions()
            distance = g.op("Sub", columns, g.op("Unsqueeze", columns, g.integers(1)))
            found = g.op("Gather", by_distance, g.op("Add", distance, g.constant(most, np.int64)))  # (L, L, H)
            self._relative[key] = g.op("Add", bias, g.op("Transpose", found, perm=[2, 0, 1]))
        return self._relative[key]

    def distance_scores(self, q: Value, k: Value, part: Attention, name: str, first: bool) -> list[Value]:
        """Products of queries with the keys of distances and of keys with the queries of distances, each (B, H, L, L),
        or (B, H, 1, L) with `first`."""
        g, config = self.graph, self.config.disentangled
        assert config is not None
        vectors, found = self.distances(), []
        for asked, matrix, which, falls in (
            (config.content_to_position, part.key, "key", True),
            (config.position_to_content, part.query, "query", False),
        ):
            if not asked:
                continue
            heads = g.op("Reshape", self.linear(vectors, matrix, f"{name}{which}."), g.integers(0, part.heads, -1))
            heads = g.op("Transpose", heads, perm=[1, 2, 0])  # (H, K, 2 * span)
            rows = g.op("Gather", heads, self.distance_rows(falls, first), axis=2)
            if not first:
                table = self.skew(g.op("MatMul", q if falls else k, rows))
                found.append(table if falls else g.op("Transpose", table, perm=[0, 1, 3, 2]))
            elif falls:
                found.append(g.op("MatMul", q, rows))
            else:  # each token's key meets the one distance of it to the first token
                rows = g.op("Transpose", rows, perm=[0, 2, 1])
                met = g.op("ReduceSum", g.op("Mul", k, rows), g.integers(-1), keepdims=0)
                found.append(g.op("Unsqueeze", met, g.integers(2)))
        return found

    def distances(self) -> Value:
        """The vectors (2 * span, D) of distances, as the layers read them."""
        if self._distances is None:
            table = self.model.encoder.distances
            assert table is not None
            self._distances = self.graph.weight("distances.weight", table.weight)
            if table.norm is not None:
                self._distances = self.norm(self._distances, table.norm, "distances.norm.")
        return self._distances

    def distance_rows(self, falls: bool, first: bool) -> Value:
        """Rows of the table: (2L,) for the distances L - 1 .. -L of a query to a key, or -L + 1 .. L; (L,) with
        `first`: for 0 .. -L + 1."""
        if (falls, first) not in self._rows:
            g, most, config = self.graph, self.config.max_positions, self.config.disentangled
            assert config is not None
            steps = torch.arange(2 * most)
            distance = most - 1 - steps if falls or first else steps - most + 1
            rows = g.constant(number_distances(distance, config).numpy(), np.int64)
            middle = g.integers(most - 1 if first else most)
            start = middle if first else g.op("Sub", middle, self.length)
            self._rows[falls, first] = g.op("Slice", rows, start, g.op("Add", middle, self.length))
        return self._rows[falls, first]

    def skew(self, x: Value) -> Value:
        """x (B, H, L, 2L), whose column says how far apart row and column stand → (B, H, L, L): element (i, j) is
        x[i, j - i + L - 1]."""
        g, one = self.graph, self.graph.integers(1)
        start, wide = g.op("Sub", self.length, one), g.op("Sub", g.op("Mul", self.length, g.integers(2)), one)
        end = g.op("Add", start, g.op("Mul", self.length, wide))
        flat = g.op("Reshape", x, g.integers(0, 0, -1))
        kept = g.op("Slice", flat, start, end, g.integers(2))
        shape = g.op("Concat", g.integers(0, 0), self.length, wide, axis=0)
        return g.op("Slice", g.op("Reshape", kept, shape), g.integers(0), self.length, g.integers(3))

    def window(self, pattern: AttentionPattern) -> Value:
        """(L, L) bool: whether the row's token sees the column's."""
        g = self.graph
        columns, window = self.positions(), g.constant(pattern.window, np.int64)
        rows = g.op("Unsqueeze", columns, g.integers(1))
        seen = g.op("LessOrEqual", g.op("Abs", g.op("Sub", rows, columns)), window)
        if pattern.global_tokens:
            first = g.constant(pattern.global_tokens, np.int64)
            for steps in (rows, columns):
                seen = g.op("Or", seen, g.op("Less", steps, first))
        return seen

    def positions(self) -> Value:
        """(L,) int64: 0, 1, …"""
        g = self.graph
        scalar = g.op("Squeeze", self.length, g.integers(0))
        return g.op("Range", g.constant(0, np.int64), scalar, g.constant(1, np.int64))

    def rotation(self, base: float, width: int) -> Turn:
        """Cosines and sines (L, K/2)."""
        if (base, width) not in self._rotations:
            g = self.graph
            steps = torch.arange(0, width, 2, dtype=torch.float32)
            rates = g.constant((1.0 / base ** (steps / width)).numpy())
            at = g.op("Unsqueeze", g.op("Cast", self.positions(), to=FLOAT), g.integers(1))
            angle = g.op("Mul", at, rates)
            self._rotations[base, width] = (g.op("Cos", angle), g.op("Sin", angle))
        return self._rotations[base, width]

    def rotate(self, x: Value, turn: Turn) -> Value:
        """x (B, H, L, K) turned: dimension i with dimension i + K/2."""
        g, (cos, sin) = self.graph, turn
        first, second = (
            g.node("Split", [x], 2, axis=-1, num_outputs=2) if g.opset >= 18 else g.node("Split", [x], 2, axis=-1)
        )
        one = g.op("Sub", g.op("Mul", first, cos), g.op("Mul", second, sin))
        other = g.op("Add", g.op("Mul", second, cos), g.op("Mul", first, sin))
        return g.op("Concat", one, other, axis=-1)

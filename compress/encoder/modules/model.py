"""The encoder and the model around it: ids in, a named output out, nothing computed that was not asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import psutil
import torch
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, Needs, reads_layer
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.token_dropping import find_head_obstacle
from compress.encoder.integers.fake_quantized import attach, compute_weight
from compress.encoder.modules.dropout import dropout
from compress.encoder.modules.dropping import KeptTokens, compute_kept_tokens, pack_padded
from compress.encoder.modules.exits import OpenRows, build_exits, read_exit
from compress.encoder.modules.heads import MaskedLMHead, ReplacedTokenHead, SequenceHead, TokenHead, build_head
from compress.encoder.modules.layers import (
    Embeddings,
    EncoderLayer,
    LayerTrace,
    Pooler,
    Position,
    copy_unset,
    fill,
    layer_norm,
    sinusoids,
)
from compress.encoder.modules.layout import Layout, PackedLayout, PaddedLayout
from compress.encoder.modules.relative import BiasTable, DistanceBias, DistanceTable, TableBias
from compress.encoder.modules.rotary import rotations
from compress.encoder.modules.tied import tie
from compress.errors import ExitCode, UserError

NOTHING = Needs()


class Encoder(nn.Module):
    """Embeddings, layers, and the pooler if the config has one.

    `layers` holds one module per parameter group; layers that share a group call the same module. Layers that share
    matrices alone (`config.sharing`) are modules of their own, which read them in the first layer of their group.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(_build_layers(config))
        tie(self.layers, config)
        bias = config.relative_bias
        self.relative = BiasTable(bias.buckets, config.layers[0].heads) if bias is not None and bias.shared else None
        self.distances = None
        if config.disentangled is not None:
            norm = layer_norm(config.hidden, config.norm_eps, config.bias) if config.disentangled.norm else None
            self.distances = DistanceTable(config.disentangled, norm, config.hidden)
        self.final_norm = layer_norm(config.hidden, config.norm_eps, config.bias) if config.norm == "pre" else None
        self.pooler = Pooler(config.hidden) if config.pooler else None

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segment_ids: Tensor | None,
        layout: Layout,
        needs: Needs = NOTHING,
    ) -> EncoderOutput:
        """ids (T,) or (B, L) as the layout says; fills every field of the output but the heads'.

        With pre-norm the last of `hidden_states` is `last_hidden`, after the final norm.
        """
        x = self.embed(input_ids, position_ids, segment_ids)
        states, traces = [], []
        config = self.config
        turns = self.turns(position_ids)
        for layer, (group, pattern, turn) in enumerate(zip(config.groups, config.patterns, turns, strict=True)):
            wants_maps = reads_layer(needs.attentions, layer) or reads_layer(needs.attention_scores, layer)
            trace = LayerTrace(wants_maps, reads_layer(needs.projections, layer))
            if needs.hidden_states:
                states.append(x)
            x = self.layers[group](x, layout, trace, pattern, turn)
            traces.append(trace)
        if self.final_norm is not None:
            x = self.final_norm(x)
        output = EncoderOutput(last_hidden=x, hidden_states=(*states, x) if needs.hidden_states else None)
        _collect(output, traces, needs)
        if needs.pooled:
            output.pooled = self.pool(layout.first(x))
        return output

    def pool(self, first: Tensor) -> Tensor:
        """(B, D) first tokens → (B, D)."""
        if self.pooler is None:
            raise UserError("this encoder has no pooler", where="encoder.pooler", do="use pooler: true")
        return self.pooler(first)

    def turns(self, position_ids: Tensor) -> Sequence[Position | None]:
        """What each layer's attention knows of positions: the rotation of its queries and keys, or what is added to its
        scores; None where positions are in the embeddings alone. Of one forward pass."""
        bases, layers, bias = self.config.rotary_bases, self.config.layers, self.config.relative_bias
        if self.distances is not None:
            assert self.config.disentangled is not None
            rows, p = self.distances(), self.config.dropout if self.training else 0.0
            modules: list[Any] = [self.layers[group].attention for group in self.config.groups]
            return [DistanceBias(dropout(rows, p), module, self.config.disentangled) for module in modules]
        if bias is not None:
            if self.relative is not None:  # made once, and read by all layers
                return [TableBias(self.relative.weight, bias)] * len(layers)
            return [TableBias(self.bias_table(group).weight, bias) for group in self.config.groups]
        if bases is None:
            return (None,) * len(layers)
        return rotations(position_ids, [(base, shape.head_width) for base, shape in zip(bases, layers, strict=True)])

    def compute_layers(self, x: Tensor, layout: Layout, position_ids: Tensor, layers: range) -> Tensor:
        """What comes out of some layers that follow each other, the last one with the final norm: nothing is kept of
        them."""
        turns = self.turns(position_ids)
        for layer in layers:
            group, pattern = self.config.groups[layer], self.config.patterns[layer]
            x = self.layers[group](x, layout, LayerTrace(), pattern, turns[layer])
        return self.final_norm(x) if self.final_norm is not None and layers.stop == self.config.depth else x

    def bias_table(self, group: int) -> BiasTable:
        """The relative position biases that the layers of a group of parameters read."""
        own: Any = self.layers[group]
        table = self.relative if self.relative is not None else own.attention.relative
        assert table is not None
        return table

    def embed(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor | None) -> Tensor:
        """ids (..) → (.., D), what the first layer reads. Raises UserError for an id outside its table."""
        try:
            return self.embeddings(input_ids, position_ids, segment_ids)
        except IndexError:  # looked into only now: checking ids beforehand would cost a pass over every batch
            raise self._bad_id(input_ids, segment_ids) from None

    def _bad_id(self, input_ids: Tensor, segment_ids: Tensor | None) -> UserError:
        tables = [("token id", input_ids, self.config.vocabulary)]
        if segment_ids is not None and self.config.segments > 1:
            tables.append(("segment id", segment_ids, self.config.segments))
        for name, ids, rows in tables:
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= rows:
                found = low if low < 0 else high
                do = "use the tokenizer that belongs to this model"
                return UserError(f"{name} {found} is outside the model's table", why=f"allowed: 0..{rows - 1}", do=do)
        return UserError("a position is outside the model's table", why=f"allowed: 0..{self.config.max_positions - 1}")


def _build_layers(config: EncoderConfig) -> Iterator[EncoderLayer]:
    """One for each group of parameters."""
    built: dict[tuple[LayerShape, bool], EncoderLayer] = {}
    for group, shape in enumerate(config.group_shapes):
        key = shape, config.first_norm or group > 0
        if key in built:
            yield copy_unset(built[key])
        else:
            yield built.setdefault(key, EncoderLayer(config, *key))


def _collect(output: EncoderOutput, traces: list[LayerTrace], needs: Needs) -> None:
    """Move what the layers kept into the fields that were asked for."""
    if needs.attentions:
        output.attentions = tuple(trace.maps.probabilities if trace.maps else [] for trace in traces)
    if needs.attention_scores:
        output.attention_scores = tuple(trace.maps.scores if trace.maps else [] for trace in traces)
    if needs.projections:
        nothing = output.last_hidden.new_zeros(0)
        kept = [trace.projections or (nothing,) * 3 for trace in traces]
        output.queries, output.keys, output.values = (tuple(p[i] for p in kept) for i in range(3))


class Model(nn.Module):
    """An encoder with its heads, under the names "mlm", "task", "pair" and "rtd".

    Built with `initialize(0)`; inside `with torch.device("meta")` nothing is allocated, for
    `load_state_dict(state, assign=True)`. The matrix of the masked-LM head is the word table itself.
    Raises UserError for a head that needs a pooler where there is none, and for a size that this machine cannot hold.
    """

    def __init__(self, config: EncoderConfig, heads: Mapping[str, HeadConfig] | None = None) -> None:
        super().__init__()
        self.config = config
        self.head_configs = dict(heads or {})
        _check_heads(config, self.head_configs)
        _check_memory(config, self.head_configs)
        self.encoder = Encoder(config)
        self.heads = nn.ModuleDict({name: build_head(config, head) for name, head in self.head_configs.items()})
        self.exits = build_exits(config, self.head_configs.get("task"))
        attach(self, config.quantization)
        if torch.get_default_device().type != "meta":
            self.initialize(0)

    def initialize(self, seed: int) -> Model:
        """Set every weight anew from `seed`, as BERT does; returns self."""
        generator = torch.Generator("cpu").manual_seed(seed)
        fill(self, self.config.initializer_range, generator)
        embeddings = self.encoder.embeddings
        with torch.no_grad():
            embeddings.word.weight[self.config.pad_id].zero_()
            if self.config.positions == "sinusoidal_start" and embeddings.position is not None:
                embeddings.position.weight.copy_(sinusoids(self.config.position_rows, self.config.width))
        return self

    def forward(self, batch: Batch, needs: Needs = NOTHING) -> EncoderOutput:
        """A packed batch → tensors (T, ..) and (B, ..), only what `needs` names (and last_hidden).

        Raises UserError for a sequence longer than the positions, a token outside the vocabulary, a missing head.
        """
        batch = self.select_tokens(batch)
        if batch.max_length > self.config.max_positions:
            raise self._too_long(batch)
        if needs.mlm == "masked" and batch.mlm_positions is None:
            raise UserError("vocabulary logits at masked positions were requested, but the batch has no masked tokens")
        if needs.logits and (self.exits or self.config.kept_tokens):
            return self._forward_apart(batch, needs)
        layout = PackedLayout.of(batch)
        output = self.encoder(batch.input_ids, batch.position_ids, batch.segment_ids, layout, needs)
        return self.apply_heads(output, layout, needs, batch.mlm_positions)

    def _forward_apart(self, batch: Batch, needs: Needs) -> EncoderOutput:
        """Logits of whichever exit answers each row, or of the tokens that are kept. Whatever else is read is computed
        apart, of all layers and tokens; where nothing is, `last_hidden` is empty."""
        if self.exits:
            logits = self.answer_early(batch).logits
        else:
            kept = self.keep_tokens(batch)
            output = self.apply_heads(EncoderOutput(last_hidden=kept.x), kept.layout, Needs(logits=True), None)
            assert output.logits is not None
            logits = output.logits
        rest = dataclasses.replace(needs, logits=False)
        if rest == NOTHING:
            return EncoderOutput(last_hidden=logits.new_zeros(0), logits=logits)
        output = self(batch, rest)
        output.logits = logits
        return output

    def answer_early(self, batch: Batch) -> OpenRows:
        """The answers to all rows, and which exit gave each.

        A row that an exit answers is in no later layer: what it costs depends on it alone, and so does its answer.
        """
        encoder, task = self.encoder, self.head_configs["task"]
        rows, done = OpenRows(batch, task.labels, len(task.exits)), 0
        x = encoder.embed(batch.input_ids, batch.position_ids, batch.segment_ids)
        for place, (exit, head) in enumerate(zip(task.exits, self.exits, strict=True)):
            x, done = encoder.compute_layers(x, rows.layout, rows.positions, range(done, exit.layer)), exit.layer
            x = rows.leave(x, head(read_exit(x, rows.layout)), exit.threshold, place)
            if not rows:
                return rows
        x = encoder.compute_layers(x, rows.layout, rows.positions, range(done, self.config.depth))
        output = self.apply_heads(EncoderOutput(last_hidden=x), rows.layout, Needs(logits=True), None)
        assert output.logits is not None
        rows.close(output.logits)
        return rows

    def keep_tokens(self, batch: Batch) -> KeptTokens:
        """What is left of the rows after all layers, where the config drops tokens between them."""
        encoder = self.encoder
        x = encoder.embed(batch.input_ids, batch.position_ids, batch.segment_ids)
        kept = compute_kept_tokens(self.config, encoder.layers, x, PackedLayout.of(batch))
        return kept if encoder.final_norm is None else dataclasses.replace(kept, x=encoder.final_norm(kept.x))

    def select_tokens(self, batch: Batch) -> Batch:
        """What the encoder reads of a batch: the tensors (T, ..) of its output are of these tokens. A static model has
        no special tokens."""
        return batch.without_special() if self.config.is_static else batch

    def forward_padded(
        self,
        input_ids: Tensor,
        mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        needs: Needs = NOTHING,
        *,
        mlm_positions: Tensor | None = None,
    ) -> EncoderOutput:
        """The same on (B, L) ids with `mask` (B, L), non-zero on real tokens: tensors (B, L, ..) and (B, ..).

        Attention maps come without padding, as in the packed layout. mlm "masked" reads `mlm_positions` (M,) as
        indices into the B·L tokens; "all" gives features (B, L, E), padding included.
        """
        if needs.logits and self.exits:
            raise UserError("a model with early exits answers packed rows only", where="forward_padded")
        if needs.logits and self.config.kept_tokens:
            if needs != Needs(logits=True):
                what = "of a padded batch, a model that drops tokens computes its logits alone"
                raise UserError(what, where="forward_padded", do="use a packed batch")
            return self(pack_padded(input_ids, mask, segment_ids), needs)
        length = input_ids.shape[1]
        if length > self.config.max_positions:
            raise UserError(
                f"a sequence of {length} tokens is too long",
                why=f"this model has {self.config.max_positions} positions",
            )
        positions = torch.arange(length, device=input_ids.device)[None, :]
        layout = PaddedLayout(mask)
        output = self.encoder(input_ids, positions, segment_ids, layout, needs)
        return self.apply_heads(output, layout, needs, mlm_positions)

    def embedding_parameter_names(self) -> list[str]:
        """Names of the embedding tables: what `parameters without embeddings` leaves out."""
        prefix = "encoder.embeddings."
        tables = {prefix + name + ".weight" for name in ("word", "position", "segment")}
        return [name for name, _ in self.named_parameters() if name in tables]

    def apply_heads(
        self, output: EncoderOutput, layout: Layout, needs: Needs, positions: Tensor | None
    ) -> EncoderOutput:
        """Fill what `needs` names of the heads' fields, from `last_hidden`; returns the output."""
        x = output.last_hidden
        if needs.mlm is not None:
            head = cast(MaskedLMHead, self._head("mlm"))
            at = positions if needs.mlm == "masked" else None
            flat = x.flatten(0, -2) if at is not None else x
            embeddings = self.encoder.embeddings
            output.vocabulary = head(flat, compute_weight(embeddings.word), at, embeddings.projection)
        if needs.replaced:
            output.replaced = cast(ReplacedTokenHead, self._head("rtd"))(x)
        wanted = [name for name, asked in (("task", needs.logits), ("pair", needs.pair_logits)) if asked]
        if "task" in wanted and self._head_config("task").per_token:
            output.logits = cast(TokenHead, self._head("task"))(x)
            wanted.remove("task")
        if not wanted:
            return output
        pooled = output.pooled
        pools = pooled is None and any(self._head_config(name).needs_pooler for name in wanted)
        pooling = self._head_config("task").pooling if "task" in wanted else "first"
        read = layout.pool(x, pooling)
        first = layout.first(x) if pooling != "first" and (pools or "pair" in wanted) else read
        if pools:
            pooled = self.encoder.pool(first)
        if "task" in wanted:
            output.logits = cast(SequenceHead, self._head("task"))(read, pooled)
        if "pair" in wanted:
            output.pair_logits = cast(SequenceHead, self._head("pair"))(first, pooled)
        return output

    def _head(self, name: str) -> nn.Module:
        self._head_config(name)
        return self.heads[name]

    def _head_config(self, name: str) -> HeadConfig:
        if name not in self.head_configs:
            has = ", ".join(self.head_configs) or "none"
            raise UserError(f"this model has no '{name}' head", why=f"heads: {has}")
        return self.head_configs[name]

    def _too_long(self, batch: Batch) -> UserError:
        lengths = batch.cu_seqlens.diff()
        row = int(batch.row_ids[int(lengths.argmax())])
        return UserError(
            f"a sequence of {int(lengths.max())} tokens is too long",
            where=f"row {row}",
            why=f"this model has {self.config.max_positions} positions",
            do="use a smaller max_length",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> EncoderOutput:
        return super().__call__(*args, **kwargs)


def require_network(value: object) -> None:
    """Raise UserError for an object that is no `Model`, such as what `compress.load` returns."""
    if not isinstance(value, Model):
        raise UserError(
            f"this is no network, but an object of the type {type(value).__name__}", where="model",
            do="give the network of a model: compress.load(FOLDER).torch_module",
        )  # fmt: skip


def _check_heads(config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> None:
    for name, head in heads.items():
        if name != head.name:
            raise UserError(f"a {head.kind} head must be named '{head.name}'", where=f"heads.{name}")
        if head.needs_pooler and not config.pooler:
            raise UserError(
                f"the {head.kind} head needs the pooler, and this encoder has none",
                where=f"heads.{name}",
                do="use pooler: true, or style: distilbert" if head.kind == "classification" else "use pooler: true",
            )
        if name == "task" and config.kept_tokens and (obstacle := find_head_obstacle(head)) is not None:
            raise UserError("this model cannot drop tokens", where="encoder.kept_tokens", why=obstacle)
        if head.exits and head.exits[-1].layer >= config.depth:
            raise UserError(
                f"an exit after layer {head.exits[-1].layer} is not possible", where=f"heads.{name}.exits",
                why=f"this encoder has {config.depth} layers, and an exit comes before the last one",
            )  # fmt: skip


def _check_memory(config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> None:
    """Refuse, before anything is allocated, weights that cannot fit into this machine's memory."""
    if torch.get_default_device().type != "cpu":
        return
    count = config.count_parameters() + sum(head.count_parameters(config) for head in heads.values())
    needed = count * torch.get_default_dtype().itemsize
    total = psutil.virtual_memory().total
    if needed > total:
        raise UserError(
            f"not enough memory for a model of {count:,} parameters",
            why=f"it needs {needed / 1e9:.1f} GB, this machine has {total / 1e9:.1f} GB",
            do="check vocabulary, hidden and layers",
            code=ExitCode.RESOURCES,
        )

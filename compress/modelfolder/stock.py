"""What most families of the ecosystem share: BERT's blocks and BERT's keys, told by tables of names.

A family that is BERT under other names says its tables and overrides `encoder_values` and `stock_values` where its
config has keys of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from compress.encoder.config.encoder import Activation, EncoderConfig, HeadConfig, HeadKind, HeadStyle, LayerShape
from compress.modelfolder import family
from compress.modelfolder import fields as f
from compress.modelfolder.family import (
    Description,
    Shapes,
    describe_unsupported,
    expand_layers,
    expand_weights_and_biases,
    has_prefix,
)
from compress.modelfolder.fields import Fields
from compress.modelfolder.heads import (
    ACTIVATIONS,
    TASK_CLASSES,
    list_claimed_heads,
    task_class,
    task_classes,
    task_head,
    task_kind,
)

DROPOUT = "classifier_dropout"
DEFAULTS: Mapping[str, Any] = {
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
WORDS = {
    "masked_lm": "masked-LM",
    "sentence_pair": "sentence-pair",
    "replaced_token": "replaced-token",
    "classification": "classification",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
}


def bert_embeddings(body: str) -> dict[str, str]:
    """Our tensor → stored tensor of the embeddings, as BERT's module calls them."""
    tables = {"word": "word_embeddings", "position": "position_embeddings", "segment": "token_type_embeddings"}
    named = {
        f"encoder.embeddings.{ours}.weight": f"{body}embeddings.{theirs}.weight" for ours, theirs in tables.items()
    }
    return named | expand_weights_and_biases({"encoder.embeddings.norm": f"{body}embeddings.LayerNorm"})


def bert_layer(body: str) -> dict[str, str]:
    """Our module → stored module of one layer, as BERT's calls them."""
    ours, theirs = "encoder.layers.{i}.", body + "encoder.layer.{i}."
    return {
        f"{ours}attention.query": f"{theirs}attention.self.query",
        f"{ours}attention.key": f"{theirs}attention.self.key",
        f"{ours}attention.value": f"{theirs}attention.self.value",
        f"{ours}attention.output": f"{theirs}attention.output.dense",
        f"{ours}attention_norm": f"{theirs}attention.output.LayerNorm",
        f"{ours}feed_forward.up": f"{theirs}intermediate.dense",
        f"{ours}feed_forward.down": f"{theirs}output.dense",
        f"{ours}output_norm": f"{theirs}output.LayerNorm",
    }


class Stock(family.Family):
    """A family with BERT's wiring.

    classes: how its class names begin.  bare: how its tensor names begin in the bare class, without the body's prefix.
    heads: kind of head → our tensor → stored tensor.  held: name of a head → what its stored tensors begin with.
    other_classes: classes beside the task's own → names of their heads.  needs_segments: whether its classes have
    segment embeddings in any case.
    copies: stored tensor → the one it is tied to, of the masked-LM head.  expresses: see `family.describe_unsupported`.
    mlm_activation: of the masked-LM head where the class fixes it, None: the encoder's.
    keys: BERT's key → this family's, "" where it has none.  defaults: by BERT's key, where the config says nothing.
    """

    classes: str
    bare: tuple[str, ...] = ("embeddings.", "encoder.", "pooler.")
    style: HeadStyle
    heads: Mapping[HeadKind, Mapping[str, str]]
    held: Mapping[str, tuple[str, ...]]
    other_classes: Mapping[str, frozenset[str]]
    copies: Mapping[str, str] = MappingProxyType({})
    expresses: Collection[str] = ()
    needs_segments: bool = True
    mlm_activation: Activation | None = None
    keys: Mapping[str, str] = MappingProxyType({})
    defaults: Mapping[str, Any] = MappingProxyType({})

    # --- names ------------------------------------------------------------------------------------------------

    @property
    def architectures(self) -> Mapping[str, frozenset[str]]:
        """Class → names of its heads."""
        own = {self.classes + name: heads for name, heads in self.other_classes.items()}
        kinds = {name: kind for name, kind in TASK_CLASSES.items() if kind in self.heads}
        tasks = task_classes(self.classes)
        return own | {self.classes + name: tasks[self.classes + name] for name in kinds}

    def canonical(self, name: str) -> str:
        """TensorFlow-era `gamma` and `beta`, and the bare class's own files, whose names lack the body's prefix."""
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            if name.endswith(".LayerNorm" + old):
                name = name.removesuffix(old) + new
        return self.body + name if name.startswith(self.bare) else name

    def body_names(self, config: EncoderConfig) -> dict[str, str]:
        """Our tensor → stored tensor of the encoder without its pooler."""
        return bert_embeddings(self.body) | expand_layers(bert_layer(self.body), config.depth)

    def pooler_names(self) -> dict[str, str]:
        return expand_weights_and_biases({"encoder.pooler.dense": f"{self.body}pooler.dense"})

    def names(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, str]:
        """As stock classes do, a model without heads is stored without the body's prefix."""
        names = self._all_names(config, heads)
        return names if heads else {ours: theirs.removeprefix(self.body) for ours, theirs in names.items()}

    def list_fused_tensors(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, tuple[str, ...]]:
        fused = self._all_fused(config)
        return fused if heads else {theirs.removeprefix(self.body): ours for theirs, ours in fused.items()}

    def list_split_tensors(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, tuple[str, ...]]:
        split = self._all_split(config)
        if heads:
            return split
        return {ours: tuple(name.removeprefix(self.body) for name in theirs) for ours, theirs in split.items()}

    def _all_fused(self, config: EncoderConfig) -> dict[str, tuple[str, ...]]:
        """Stored tensor → our tensors that it joins."""
        return {}

    def _all_split(self, config: EncoderConfig) -> dict[str, tuple[str, ...]]:
        """Our tensor → stored tensors that it joins."""
        return {}

    def _all_names(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, str]:
        names = self.body_names(config) | (self.pooler_names() if config.pooler else {})
        for head in heads.values():
            names |= self.heads[head.kind]
        return names

    def buffers(self) -> frozenset[str]:
        """Stored tensors that carry nothing: older versions wrote them."""
        return frozenset(f"{self.body}embeddings.{name}" for name in ("position_ids", "token_type_ids"))

    # --- reading ----------------------------------------------------------------------------------------------

    def describe(self, fields: Fields, shapes: Shapes) -> Description:
        refuse_what_we_lack(fields)
        heads = self.read_heads(fields, shapes)
        pooler = has_prefix(shapes, f"{self.body}pooler.") or any(head.needs_pooler for head in heads.values())
        config = self.adapt_encoder(EncoderConfig(**self.encoder_values(fields), pooler=pooler), heads)
        names = self._all_names(config, heads)
        copies = dict(self.copies) if "mlm" in heads else {}
        fused, split = self._all_fused(config), self._all_split(config)
        swapped = self.list_swapped_tensors(config)
        return Description(config, heads, names, copies, self.buffers(), fused, split, swapped=swapped)

    def read_heads(self, fields: Fields, shapes: Shapes) -> dict[str, HeadConfig]:
        """Every head that the class promises or the file holds."""
        held = {name for name, starts in self.held.items() if any(has_prefix(shapes, start) for start in starts)}
        names = held | list_claimed_heads(fields, self.architectures)
        found = {}
        if "mlm" in names:
            found["mlm"] = HeadConfig("masked_lm", activation=self._mlm_activation(fields))
        if "pair" in names:
            found["pair"] = HeadConfig("sentence_pair")
        if "rtd" in names:
            found["rtd"] = HeadConfig("replaced_token")
        if "task" in names:
            named = self._named(fields, shapes)
            dropout = self.read_dropout(fields, task_kind(named, shapes))
            found["task"] = task_head(named, shapes, self.style, dropout)
        return found

    def key(self, name: str) -> str:
        """This family's key for what BERT calls `name`."""
        return self.keys.get(name, name)

    def adapt(self, head: HeadConfig, fields: Fields) -> HeadConfig:
        activation = self._mlm_activation(fields) if head.kind == "masked_lm" or self.style == "modernbert" else None
        return dataclasses.replace(head, style=self.style, activation=activation)

    def read_dropout(self, fields: Fields, kind: HeadKind) -> float | None:
        """Of a task head of this kind; None: the encoder's."""
        key, default = self.key(DROPOUT), self.defaults.get(DROPOUT)
        if default is None and fields.values.get(key) is None:
            return None
        return fields.number(key, least=0, below=1, default=default or 0.0)

    def _mlm_activation(self, fields: Fields) -> Activation | None:
        if self.mlm_activation is None or self.mlm_activation == self.read_activation(fields):
            return None
        return self.mlm_activation

    def _named(self, fields: Fields, shapes: Shapes) -> Fields:
        """The config, with the task class that the stored tensors speak of where it names none."""
        named = fields.values.get("architectures") or [""]
        if str(named[0]).endswith(tuple(TASK_CLASSES)):
            return fields
        fitting = [
            end for end, kind in TASK_CLASSES.items() if set(self.heads.get(kind, {"": ""}).values()) <= {*shapes}
        ]
        return Fields({**fields.values, "architectures": fitting[:1]}, fields.where)

    def read_activation(self, fields: Fields) -> Activation:
        default = self.defaults.get("hidden_act", "gelu")
        return fields.choice(self.key("hidden_act"), ACTIVATIONS, default)  # pyright: ignore[reportReturnType]

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        """What EncoderConfig is made of, its pooler apart."""
        key, d = self.key, {**DEFAULTS, **self.defaults}
        hidden = fields.integer(key("hidden_size"), most=f.MAX_WIDTH)
        heads = fields.integer(key("num_attention_heads"), most=f.MAX_HEADS)
        layers = fields.integer(key("num_hidden_layers"), most=f.MAX_LAYERS)
        vocabulary = fields.integer("vocab_size", most=f.MAX_VOCABULARY)
        width = self.read_head_width(fields, hidden, heads)
        shape = LayerShape(heads, width, fields.integer(key("intermediate_size"), most=f.MAX_WIDTH))
        values = {
            "vocabulary": vocabulary,
            "hidden": hidden,
            "layers": (shape,) * layers,
            "activation": self.read_activation(fields),
            "max_positions": fields.integer(
                "max_position_embeddings", most=f.MAX_POSITIONS, default=d["max_position_embeddings"]
            ),
            "pad_id": fields.integer(
                "pad_token_id", least=0, most=vocabulary - 1, default=min(d["pad_token_id"], vocabulary - 1)
            ),
            "initializer_range": fields.number("initializer_range", least=1e-38, below=1, default=0.02),
            "norm_eps": d["layer_norm_eps"],
            "segments": 0,
        }
        for name, theirs in (("dropout", "hidden_dropout_prob"), ("attention_dropout", "attention_probs_dropout_prob")):
            values[name] = fields.number(key(theirs), least=0, below=1, default=d[theirs])
        if own := key("layer_norm_eps"):
            values["norm_eps"] = fields.number(own, least=1e-38, below=1, default=d["layer_norm_eps"])
        if own := key("type_vocab_size"):
            values["segments"] = fields.integer(own, most=f.MAX_SEGMENTS, default=2)
        return values

    def read_head_width(self, fields: Fields, hidden: int, heads: int) -> int:
        return f.divisible(fields, self.key("hidden_size"), hidden, self.key("num_attention_heads"), heads)

    # --- writing ----------------------------------------------------------------------------------------------

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if (reason := describe_unsupported(config, self.expresses)) is not None:
            return reason
        if config.positions == "sinusoidal":
            return "its positions are fixed sinusoids, not a learned table"
        if self.needs_segments and config.segments == 0:
            return "it has no segment embeddings"
        return self.head_objection(config, heads)

    def head_objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        """What hinders as to the heads."""
        for head in heads.values():
            if head.kind not in self.heads:
                return f"no {self.classes} class has a {WORDS[head.kind]} head"
            if head.name == "task" and head.style != self.style and (head.transforms or not head.per_token):
                return f"its task head is {head.style}'s"
        mlm = heads.get("mlm")
        if mlm is not None and mlm.tied_projection and config.width != config.hidden:
            return "its masked-LM head uses the embedding projection"
        if mlm is not None and mlm.feature_norm_eps not in (None, config.norm_eps):
            return "its masked-LM head has another norm epsilon than its encoder"
        if mlm is not None and (mlm.activation or config.activation) != (self.mlm_activation or config.activation):
            return f"its masked-LM head has the activation {mlm.activation or config.activation}"
        return None

    def config_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture(heads)],
            **self.stock_values(config, heads),
            "tie_word_embeddings": True,
            "dtype": "float32",
        }

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        """The keys that describe encoder and heads."""
        shape, task = config.layers[0], heads.get("task")
        values = {
            "vocab_size": config.vocabulary,
            "hidden_size": config.hidden,
            "num_hidden_layers": config.depth,
            "num_attention_heads": shape.heads,
            "intermediate_size": shape.feed_forward,
            "hidden_act": config.activation,
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_dropout,
            DROPOUT: task.dropout if task else None,
            "max_position_embeddings": config.position_rows,
            "type_vocab_size": config.segments,
            "initializer_range": config.initializer_range,
            "layer_norm_eps": config.norm_eps,
            "pad_token_id": config.pad_id,
        }
        return {key: value for name, value in values.items() if (key := self.key(name))}

    def architecture(self, heads: Mapping[str, HeadConfig]) -> str:
        """The class to name. A task head goes first, since it is what a folder is deployed for; other heads stay in the
        file under their stock names, where their own classes find them and this one does not look."""
        if "task" in heads:
            return task_class(self.classes, heads["task"])
        fitting = [name for name, has in self.architectures.items() if has <= set(heads)]
        return max(fitting, key=lambda name: len(self.architectures[name]))


def refuse_what_we_lack(fields: Fields) -> None:
    """Refuses a config that asks for what no encoder of ours does."""
    fields.refuse("position_embedding_type", ("absolute",), "only absolute positions are supported")
    fields.refuse("is_decoder", (False,), "only encoders are supported")
    fields.refuse("add_cross_attention", (False,), "only encoders without cross attention are supported")
    fields.refuse("is_encoder_decoder", (False,), "only encoders are supported")
    fields.refuse("chunk_size_feed_forward", (0,), "set it to 0: chunking changes memory, not results")
    fields.refuse("pruned_heads", ({},), "transformers no longer supports this format of pruned heads")
    fields.refuse("quantization_config", (), "only fp32, fp16 and bf16 weights are supported")

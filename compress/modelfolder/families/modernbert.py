"""ModernBERT (2412.13663) as transformers writes it: rotary positions, norms before each block, gated feed-forward
parts, no biases, and layers that see all tokens in turn with layers that see a window of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import Activation, EncoderConfig, HeadConfig, HeadKind
from compress.errors import UserError
from compress.modelfolder import fields as f
from compress.modelfolder import rotary
from compress.modelfolder.family import Shapes, describe_unsupported, expand_layers, expand_weights_and_biases
from compress.modelfolder.fields import Fields
from compress.modelfolder.heads import ACTIVATIONS
from compress.modelfolder.stock import WORDS, Stock

BODY = "model."
GLOBAL, LOCAL = "full_attention", "sliding_attention"
BASES = {GLOBAL: 160_000.0, LOCAL: 10_000.0}
OLD_BASES = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}
DROPOUTS = ("embedding_dropout", "mlp_dropout")
BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")

EMBEDDINGS = {
    "encoder.embeddings.word": f"{BODY}embeddings.tok_embeddings",
    "encoder.embeddings.norm": f"{BODY}embeddings.norm",
    "encoder.final_norm": f"{BODY}final_norm",
}
LAYER = {
    "encoder.layers.{i}.attention_norm": BODY + "layers.{i}.attn_norm",
    "encoder.layers.{i}.attention.output": BODY + "layers.{i}.attn.Wo",
    "encoder.layers.{i}.output_norm": BODY + "layers.{i}.mlp_norm",
    "encoder.layers.{i}.feed_forward.up": BODY + "layers.{i}.mlp.Wi",
    "encoder.layers.{i}.feed_forward.down": BODY + "layers.{i}.mlp.Wo",
}
# The classes with a last matrix of their own all call what comes before it `head`.
TASK = {
    "heads.task.dense.weight": "head.dense.weight",
    "heads.task.norm.weight": "head.norm.weight",
    **expand_weights_and_biases({"heads.task.classifier": "classifier"}),
}
HEADS: Mapping[HeadKind, Mapping[str, str]] = {
    "masked_lm": {
        "heads.mlm.dense.weight": "head.dense.weight",
        "heads.mlm.norm.weight": "head.norm.weight",
        "heads.mlm.bias": "decoder.bias",
    },
    "classification": TASK,
    "token_classification": TASK,
    "question_answering": TASK,
}
OTHER_CLASSES = {"Model": frozenset(), "ForMaskedLM": frozenset({"mlm"})}
HELD = {"mlm": ("decoder.",), "task": ("classifier.",)}
COPIES = {"decoder.weight": f"{BODY}embeddings.tok_embeddings.weight"}
KEYS = {
    "hidden_act": "hidden_activation",
    "hidden_dropout_prob": DROPOUTS[0],
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_eps",
    "type_vocab_size": "",
}
DEFAULTS = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.0,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "pad_token_id": 50_283,
}


class Family(Stock):
    model_type = "modernbert"
    classes = "ModernBert"
    body = BODY
    bare = ("embeddings.", "layers.", "final_norm.")
    style = "modernbert"
    other_classes = OTHER_CLASSES
    heads = HEADS
    held = HELD
    copies = COPIES
    expresses = frozenset({"windows", "pre", "rotary", "gated", "no_bias"})
    keys = KEYS
    defaults = DEFAULTS

    # --- names ------------------------------------------------------------------------------------------------

    def body_names(self, config: EncoderConfig) -> dict[str, str]:
        """The first layer has no norm before its attention; queries, keys and values are one tensor (`_all_fused`)."""
        names = expand_layers({**EMBEDDINGS, **LAYER}, config.depth, ("weight",))
        del names["encoder.layers.0.attention_norm.weight"]
        return names

    def _all_fused(self, config: EncoderConfig) -> dict[str, tuple[str, ...]]:
        return {
            f"{BODY}layers.{i}.attn.Wqkv.weight": tuple(
                f"encoder.layers.{i}.attention.{part}.weight" for part in ("query", "key", "value")
            )
            for i in range(config.depth)
        }

    # --- reading ----------------------------------------------------------------------------------------------

    def read_heads(self, fields: Fields, shapes: Shapes) -> dict[str, HeadConfig]:
        """Heads with the activation and the pooling that the config names for them."""
        if "mlm" in (found := super().read_heads(fields, shapes)):
            fields.refuse("decoder_bias", (True,), "a ModernBERT masked-LM decoder has a bias")
        return {name: self.adapt(head, fields) for name, head in found.items()}

    def adapt(self, head: HeadConfig, fields: Fields) -> HeadConfig:
        adapted = super().adapt(head, fields)
        if head.kind != "classification":
            return adapted
        pooling: Any = fields.choice("classifier_pooling", {"cls": "first", "mean": "mean"}, "cls")
        return dataclasses.replace(adapted, pooling=pooling)

    def _mlm_activation(self, fields: Fields) -> Activation | None:
        own = fields.choice("classifier_activation", ACTIVATIONS, "gelu")
        return None if own == self.read_activation(fields) else own  # pyright: ignore[reportReturnType]

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        for name in BIASES:
            fields.refuse(name, (False,), "ModernBERT's layers, norms and heads have no bias")
        values = super().encoder_values(fields)
        types = _layer_types(fields, len(values["layers"]))
        window = fields.integer("local_attention", least=2, most=2 * f.MAX_POSITIONS, default=128) // 2
        bases = {kind: _base(fields, kind) for kind in BASES}
        dropouts = {name: fields.number(name, least=0, below=1, default=0.0) for name in DROPOUTS}
        if len(set(dropouts.values())) > 1:
            told = ", ".join(f"{name} {value:g}" for name, value in dropouts.items())
            raise UserError(f"{told} are not supported", where=fields.where, why="both must have the same dropout")
        return values | {
            "norm": "pre",
            "first_norm": False,
            "bias": False,
            "gated": True,
            "positions": "rotary",
            "rotary_bases": tuple(bases[kind] for kind in types),
            "windows": tuple(window if kind == LOCAL else None for kind in types),
        }

    # --- writing ----------------------------------------------------------------------------------------------

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if config.positions != "rotary" or config.rotary_bases is None:
            return "its positions are not rotary"
        if config.bias or not config.gated or config.norm != "pre":
            return "its layers are not ModernBERT's: pre-norm, gated, without biases"
        if config.first_norm:
            return "its first layer normalises before its attention"
        if config.segments or config.pooler:
            return "it has segment embeddings or a pooler"
        if config.global_tokens or len({window for window in config.windows or () if window is not None}) > 1:
            return "its attention windows have different widths or global tokens"
        if len(set(_typed_bases(config))) > len(set(_types(config))):
            return "its layers of one type have different rotary bases"
        return describe_unsupported(config, self.expresses) or self.head_objection(config, heads)

    def head_objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if len(heads) > 1:
            return "a ModernBERT class has a single head"
        for head in heads.values():
            if head.kind not in self.heads:
                return f"no {self.classes} class has a {WORDS[head.kind]} head"
            if head.kind != "masked_lm" and head.style != self.style:
                return f"its task head is {head.style}'s"
            if head.feature_norm_eps not in (None, config.norm_eps):
                return "its head has another norm epsilon than its encoder"
        return None

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        types, head = _types(config), next(iter(heads.values()), None)
        bases = {**BASES, **dict(zip(types, config.rotary_bases or (), strict=True))}
        window = next((w for w in config.windows or () if w is not None), 64)
        return super().stock_values(config, heads) | {
            "layer_types": types,
            "local_attention": 2 * window,
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
            **dict.fromkeys(BIASES, False),
            "decoder_bias": True,
            **dict.fromkeys(DROPOUTS, config.dropout),
            "classifier_dropout": config.dropout if head is None or head.dropout is None else head.dropout,
            "classifier_activation": config.activation if head is None else head.activation or config.activation,
            "classifier_pooling": "mean" if head is not None and head.pooling == "mean" else "cls",
        }


def _layer_types(fields: Fields, layers: int) -> list[str]:
    """What each layer sees; older configs say that every n-th layer sees everything."""
    found: Any = fields.values.get("layer_types")
    if found is None:
        every = fields.integer("global_attn_every_n_layers", most=f.MAX_LAYERS, default=3)
        return [LOCAL if i % every else GLOBAL for i in range(layers)]
    if not isinstance(found, list) or len(found) != layers or not all(kind in (GLOBAL, LOCAL) for kind in found):
        raise fields.wrong("layer_types", f"{layers} times {GLOBAL} or {LOCAL}")
    return found


def _base(fields: Fields, kind: str) -> float:
    """θ of the layers of one kind, in the new or the old spelling."""
    fields.refuse("rope_scaling", (), rotary.PLAIN)
    told: Any = fields.values.get(rotary.KEY)
    if told is None:
        # A local θ that is null is the global one (transformers 4); one that is absent has a default of its own.
        same = OLD_BASES[LOCAL] in fields.values and fields.values[OLD_BASES[LOCAL]] is None
        at = GLOBAL if same else kind
        return fields.number(OLD_BASES[at], least=1.0001, below=1e30, default=BASES[at])
    row = told.get(kind) if isinstance(told, dict) else None
    if row is None and isinstance(told, dict):
        row = {}
    if not isinstance(row, dict):
        raise fields.wrong("rope_parameters", f"an object with {GLOBAL} and {LOCAL}")
    return rotary.read_row(row, f"{rotary.KEY}.{kind}", fields.where, BASES[kind])


def _types(config: EncoderConfig) -> list[str]:
    return [GLOBAL if pattern.window is None else LOCAL for pattern in config.patterns]


def _typed_bases(config: EncoderConfig) -> list[tuple[str, float]]:
    return list(zip(_types(config), config.rotary_bases or (), strict=True))

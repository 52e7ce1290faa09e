"""DistilBERT (1910.01108) as transformers writes it: the bare model, masked LM, and the task classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.encoder.config import EncoderConfig, HeadConfig, HeadKind, LayerShape
from compress.modelfolder import family
from compress.modelfolder import fields as f
from compress.modelfolder.family import Description, Shapes, any_under, layered, pairs, uneven
from compress.modelfolder.fields import Fields
from compress.modelfolder.heads import ACTIVATIONS, claimed_heads, task_class, task_classes, task_head, task_kind

NORM_EPS = 1e-12  # written into the classes, not into their config

ARCHITECTURES: Mapping[str, frozenset[str]] = {
    "DistilBertModel": frozenset(),
    "DistilBertForMaskedLM": frozenset({"mlm"}),
    **task_classes("DistilBert"),
}

EMBEDDINGS = {
    "encoder.embeddings.word.weight": "distilbert.embeddings.word_embeddings.weight",
    "encoder.embeddings.position.weight": "distilbert.embeddings.position_embeddings.weight",
    "encoder.embeddings.norm.weight": "distilbert.embeddings.LayerNorm.weight",
    "encoder.embeddings.norm.bias": "distilbert.embeddings.LayerNorm.bias",
}
LAYER = {
    "encoder.layers.{i}.attention.query": "distilbert.transformer.layer.{i}.attention.q_lin",
    "encoder.layers.{i}.attention.key": "distilbert.transformer.layer.{i}.attention.k_lin",
    "encoder.layers.{i}.attention.value": "distilbert.transformer.layer.{i}.attention.v_lin",
    "encoder.layers.{i}.attention.output": "distilbert.transformer.layer.{i}.attention.out_lin",
    "encoder.layers.{i}.attention_norm": "distilbert.transformer.layer.{i}.sa_layer_norm",
    "encoder.layers.{i}.feed_forward.up": "distilbert.transformer.layer.{i}.ffn.lin1",
    "encoder.layers.{i}.feed_forward.down": "distilbert.transformer.layer.{i}.ffn.lin2",
    "encoder.layers.{i}.output_norm": "distilbert.transformer.layer.{i}.output_layer_norm",
}
HEADS = {
    "mlm": {
        **pairs({"heads.mlm.dense": "vocab_transform", "heads.mlm.norm": "vocab_layer_norm"}),
        "heads.mlm.bias": "vocab_projector.bias",
    },
    "task": pairs({"heads.task.pre_classifier": "pre_classifier", "heads.task.classifier": "classifier"}),
}
TOKENS = pairs({"heads.task.classifier": "classifier"})
SPANS = pairs({"heads.task.classifier": "qa_outputs"})
DROPOUTS: Mapping[HeadKind, str] = {"classification": "seq_classif_dropout", "question_answering": "qa_dropout"}
HEAD_PREFIXES = {"mlm": ("vocab_",), "task": ("pre_classifier.", "classifier.", "qa_outputs.")}
COPIES = {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
BUFFERS = frozenset({"distilbert.embeddings.position_ids"})


class Family(family.Family):
    model_type = "distilbert"

    def canonical(self, name: str) -> str:
        """DistilBertModel's own files lack the `distilbert.` prefix."""
        return f"distilbert.{name}" if name.startswith(("embeddings.", "transformer.")) else name

    def describe(self, fields: Fields, shapes: Shapes) -> Description:
        fields.refuse("chunk_size_feed_forward", (0,), "set it to 0: chunking changes memory, not results")
        fields.refuse("is_decoder", (False,), "encoders are, decoders are not")
        fields.refuse("pruned_heads", ({},), "the heads were pruned in a format that transformers gave up")
        fields.refuse("quantization_config", (), "only fp32, fp16 and bf16 weights are")
        heads = self._heads(fields, shapes)
        config = _config(fields)
        copies = {alias: kept for alias, kept in COPIES.items() if "mlm" in heads}
        return Description(config, heads, _names(config, heads), copies, BUFFERS)

    def _heads(self, fields: Fields, shapes: Shapes) -> dict[str, HeadConfig]:
        held = {name for name, prefixes in HEAD_PREFIXES.items() if any(any_under(shapes, p) for p in prefixes)}
        names = held | claimed_heads(fields, ARCHITECTURES)
        heads: dict[str, HeadConfig] = {}
        if "mlm" in names:
            heads["mlm"] = HeadConfig("masked_lm")
        if "task" in names:
            heads["task"] = task_head(fields, shapes, "distilbert", _dropout(fields, task_kind(fields, shapes)))
        return heads

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if (reason := uneven(config)) is not None:
            return reason
        if config.segments:
            return "it has segment embeddings"
        if config.pooler:
            return "it has a pooler"
        if config.norm_eps != NORM_EPS:
            return f"its norm epsilon is {config.norm_eps:g}, where DistilBERT's is {NORM_EPS:g}"
        task, mlm = heads.get("task"), heads.get("mlm")
        if task is not None and task.kind == "classification" and task.style != "distilbert":
            return "its task head reads a pooler"
        if mlm is not None and mlm.feature_norm_eps not in (None, NORM_EPS):
            return "its masked-LM head has a norm epsilon of its own"
        return "it has a sentence-pair head" if "pair" in heads else None

    def config_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        shape = config.layers[0]
        task = heads.get("task")
        return {
            "model_type": "distilbert",
            "architectures": [_architecture(heads)],
            "vocab_size": config.vocabulary,
            "dim": config.hidden,
            "n_layers": config.depth,
            "n_heads": shape.heads,
            "hidden_dim": shape.feed_forward,
            "activation": config.activation,
            "dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            **{key: own for kind, key in DROPOUTS.items() if (own := _own_dropout(config, task, kind)) is not None},
            "max_position_embeddings": config.max_positions,
            "sinusoidal_pos_embds": config.positions == "sinusoidal",
            "initializer_range": config.initializer_range,
            "pad_token_id": config.pad_id,
            "tie_word_embeddings": True,
            "dtype": "float32",
        }

    def names(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, str]:
        """As stock classes do, a model without heads is stored without the `distilbert.` prefix."""
        names = _names(config, heads)
        return names if heads else {ours: theirs.removeprefix("distilbert.") for ours, theirs in names.items()}


def _names(config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, str]:
    """Our parameter name → canonical stored name."""
    body = {**EMBEDDINGS, **layered(LAYER, config.depth)}
    own = {"token_classification": TOKENS, "question_answering": SPANS}
    tables = [own.get(head.kind, HEADS[name]) for name, head in heads.items()]
    return body | {ours: theirs for table in tables for ours, theirs in table.items()}


def _dropout(fields: Fields, kind: HeadKind) -> float | None:
    """Of the task head; None where the encoder's holds."""
    if kind not in DROPOUTS:
        return None
    return fields.number(DROPOUTS[kind], least=0, below=1, default=0.2 if kind == "classification" else 0.1)


def _own_dropout(config: EncoderConfig, task: HeadConfig | None, kind: HeadKind) -> float | None:
    """What to write of the dropout of a task head of `kind`."""
    if task is not None and task.kind == kind:
        return config.dropout if task.dropout is None else task.dropout
    return config.dropout if kind == "classification" else None


def _config(fields: Fields) -> EncoderConfig:
    hidden = fields.integer("dim", most=f.MAX_WIDTH)
    heads = fields.integer("n_heads", most=f.MAX_HEADS)
    layers = fields.integer("n_layers", most=f.MAX_LAYERS)
    vocabulary = fields.integer("vocab_size", most=f.MAX_VOCABULARY)
    width = f.divisible(fields, "dim", hidden, "n_heads", heads)
    shape = LayerShape(heads, width, fields.integer("hidden_dim", most=f.MAX_WIDTH))
    return EncoderConfig(
        vocabulary=vocabulary,
        hidden=hidden,
        layers=(shape,) * layers,
        norm_eps=NORM_EPS,
        activation=fields.choice("activation", ACTIVATIONS, "gelu"),  # pyright: ignore[reportArgumentType]
        max_positions=fields.integer("max_position_embeddings", most=f.MAX_POSITIONS, default=512),
        positions="sinusoidal" if fields.flag("sinusoidal_pos_embds") else "learned",
        segments=0,
        pooler=False,
        dropout=fields.number("dropout", least=0, below=1, default=0.1),
        attention_dropout=fields.number("attention_dropout", least=0, below=1, default=0.1),
        pad_id=fields.integer("pad_token_id", least=0, most=vocabulary - 1, default=0),
        initializer_range=fields.number("initializer_range", least=1e-38, below=1, default=0.02),
    )


def _architecture(heads: Mapping[str, HeadConfig]) -> str:
    """A task head goes first, since it is what a folder is deployed for; a masked-LM head beside it stays in the file
    under its stock names."""
    if "task" in heads:
        return task_class("DistilBert", heads["task"])
    return next(name for name, has in ARCHITECTURES.items() if has == set(heads))

"""BERT (1810.04805) as transformers writes it: the bare model, masked LM, sentence pairs, and the task classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.encoder.config import EncoderConfig, HeadConfig, LayerShape
from compress.errors import UserError, printable
from compress.modelfolder import family
from compress.modelfolder import fields as f
from compress.modelfolder.family import Description, Shapes, any_under, layered, pairs, uneven
from compress.modelfolder.fields import Fields
from compress.modelfolder.heads import ACTIVATIONS, claimed_heads, task_class, task_classes, task_head

# Which heads each class has. A class that is not here has a head that we do not know.
ARCHITECTURES: Mapping[str, frozenset[str]] = {
    "BertModel": frozenset(),
    "BertForMaskedLM": frozenset({"mlm"}),
    "BertForPreTraining": frozenset({"mlm", "pair"}),
    "BertForNextSentencePrediction": frozenset({"pair"}),
    **task_classes("Bert"),
}
HEAD_PREFIXES = {
    "mlm": ("cls.predictions.",),
    "pair": ("cls.seq_relationship.",),
    "task": ("classifier.", "qa_outputs."),
}

EMBEDDINGS = {
    "encoder.embeddings.word.weight": "bert.embeddings.word_embeddings.weight",
    "encoder.embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
    "encoder.embeddings.segment.weight": "bert.embeddings.token_type_embeddings.weight",
    "encoder.embeddings.norm.weight": "bert.embeddings.LayerNorm.weight",
    "encoder.embeddings.norm.bias": "bert.embeddings.LayerNorm.bias",
}
LAYER = {
    "encoder.layers.{i}.attention.query": "bert.encoder.layer.{i}.attention.self.query",
    "encoder.layers.{i}.attention.key": "bert.encoder.layer.{i}.attention.self.key",
    "encoder.layers.{i}.attention.value": "bert.encoder.layer.{i}.attention.self.value",
    "encoder.layers.{i}.attention.output": "bert.encoder.layer.{i}.attention.output.dense",
    "encoder.layers.{i}.attention_norm": "bert.encoder.layer.{i}.attention.output.LayerNorm",
    "encoder.layers.{i}.feed_forward.up": "bert.encoder.layer.{i}.intermediate.dense",
    "encoder.layers.{i}.feed_forward.down": "bert.encoder.layer.{i}.output.dense",
    "encoder.layers.{i}.output_norm": "bert.encoder.layer.{i}.output.LayerNorm",
}
POOLER = {"encoder.pooler.dense": "bert.pooler.dense"}
HEADS = {
    "mlm": {
        **pairs(
            {
                "heads.mlm.dense": "cls.predictions.transform.dense",
                "heads.mlm.norm": "cls.predictions.transform.LayerNorm",
            }
        ),
        "heads.mlm.bias": "cls.predictions.bias",
    },
    "pair": pairs({"heads.pair.classifier": "cls.seq_relationship"}),
    "task": pairs({"heads.task.classifier": "classifier"}),
}
SPANS = pairs({"heads.task.classifier": "qa_outputs"})
# Written by some savers beside the tensor that it is tied to.
COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
BUFFERS = frozenset({"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"})


class Family(family.Family):
    model_type = "bert"

    def canonical(self, name: str) -> str:
        """TensorFlow-era `gamma`/`beta`, and BertModel's own files, whose names lack the `bert.` prefix."""
        if name.endswith((".LayerNorm.gamma", ".LayerNorm.beta")):
            name = (
                name.removesuffix(".gamma") + ".weight"
                if name.endswith("gamma")
                else name.removesuffix(".beta") + ".bias"
            )
        return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name

    def describe(self, fields: Fields, shapes: Shapes) -> Description:
        _refuse_what_we_lack(fields)
        heads = self._heads(fields, shapes)
        pooler = any_under(shapes, "bert.pooler.") or any(head.needs_pooler for head in heads.values())
        config = _config(fields, pooler)
        names = _names(config, heads)
        copies = {alias: kept for alias, kept in COPIES.items() if "mlm" in heads}
        return Description(config, heads, names, copies, BUFFERS)

    def _heads(self, fields: Fields, shapes: Shapes) -> dict[str, HeadConfig]:
        held = {name for name, prefixes in HEAD_PREFIXES.items() if any(any_under(shapes, p) for p in prefixes)}
        names = held | claimed_heads(fields, ARCHITECTURES)
        heads: dict[str, HeadConfig] = {}
        if "mlm" in names:
            heads["mlm"] = HeadConfig("masked_lm")
        if "pair" in names:
            heads["pair"] = HeadConfig("sentence_pair")
        if "task" in names:
            own = fields.values.get("classifier_dropout") is not None  # else the encoder's holds
            dropout = fields.number("classifier_dropout", least=0, below=1, default=0) if own else None
            heads["task"] = task_head(fields, shapes, "bert", dropout)
        return heads

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if (reason := uneven(config)) is not None:
            return reason
        if config.positions == "sinusoidal":
            return "its positions are fixed sinusoids, not a learned table"
        if config.segments == 0:
            return "it has no segment embeddings"
        task, mlm = heads.get("task"), heads.get("mlm")
        if task is not None and task.kind == "classification" and task.style != "bert":
            return "its task head does not read a pooler"
        if mlm is not None and mlm.feature_norm_eps not in (None, config.norm_eps):
            return "its masked-LM head has a norm epsilon of its own"
        return None

    def config_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        shape = config.layers[0]
        task = heads.get("task")
        return {
            "model_type": "bert",
            "architectures": [_architecture(heads)],
            "vocab_size": config.vocabulary,
            "hidden_size": config.hidden,
            "num_hidden_layers": config.depth,
            "num_attention_heads": shape.heads,
            "intermediate_size": shape.feed_forward,
            "hidden_act": config.activation,
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_dropout,
            "classifier_dropout": task.dropout if task else None,
            "max_position_embeddings": config.max_positions,
            "type_vocab_size": config.segments,
            "initializer_range": config.initializer_range,
            "layer_norm_eps": config.norm_eps,
            "pad_token_id": config.pad_id,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": True,
            "dtype": "float32",
        }

    def names(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, str]:
        """As stock classes do, a model without heads is stored without the `bert.` prefix."""
        names = _names(config, heads)
        return names if heads else {ours: theirs.removeprefix("bert.") for ours, theirs in names.items()}


def _names(config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, str]:
    """Our parameter name → canonical stored name."""
    body = {**EMBEDDINGS, **layered(LAYER, config.depth), **(pairs(POOLER) if config.pooler else {})}
    tables = [SPANS if head.kind == "question_answering" else HEADS[name] for name, head in heads.items()]
    return body | {ours: theirs for table in tables for ours, theirs in table.items()}


def _refuse_what_we_lack(fields: Fields) -> None:
    fields.refuse("position_embedding_type", ("absolute",), "only absolute positions are")
    fields.refuse("is_decoder", (False,), "encoders are, decoders are not")
    fields.refuse("add_cross_attention", (False,), "encoders are, cross attention is not")
    fields.refuse("is_encoder_decoder", (False,), "encoders are, encoder-decoders are not")
    fields.refuse("chunk_size_feed_forward", (0,), "set it to 0: chunking changes memory, not results")
    fields.refuse("pruned_heads", ({},), "the heads were pruned in a format that transformers gave up")
    fields.refuse("quantization_config", (), "only fp32, fp16 and bf16 weights are")
    if (size := fields.values.get("embedding_size")) is not None and size != fields.values.get("hidden_size"):
        raise UserError(
            f"embedding_size {printable(repr(size), 40)} is not supported in a BERT",
            where=fields.where,
            why="its embeddings are as wide as hidden_size",
        )


def _config(fields: Fields, pooler: bool) -> EncoderConfig:
    hidden = fields.integer("hidden_size", most=f.MAX_WIDTH)
    heads = fields.integer("num_attention_heads", most=f.MAX_HEADS)
    layers = fields.integer("num_hidden_layers", most=f.MAX_LAYERS)
    vocabulary = fields.integer("vocab_size", most=f.MAX_VOCABULARY)
    width = f.divisible(fields, "hidden_size", hidden, "num_attention_heads", heads)
    shape = LayerShape(heads, width, fields.integer("intermediate_size", most=f.MAX_WIDTH))
    return EncoderConfig(
        vocabulary=vocabulary,
        hidden=hidden,
        layers=(shape,) * layers,
        norm_eps=fields.number("layer_norm_eps", least=1e-38, below=1, default=1e-12),
        activation=fields.choice("hidden_act", ACTIVATIONS, "gelu"),  # pyright: ignore[reportArgumentType]
        max_positions=fields.integer("max_position_embeddings", most=f.MAX_POSITIONS, default=512),
        segments=fields.integer("type_vocab_size", most=f.MAX_SEGMENTS, default=2),
        pooler=pooler,
        dropout=fields.number("hidden_dropout_prob", least=0, below=1, default=0.1),
        attention_dropout=fields.number("attention_probs_dropout_prob", least=0, below=1, default=0.1),
        pad_id=fields.integer("pad_token_id", least=0, most=vocabulary - 1, default=0),
        initializer_range=fields.number("initializer_range", least=1e-38, below=1, default=0.02),
    )


def _architecture(heads: Mapping[str, HeadConfig]) -> str:
    """The class to name. A task head goes first, since it is what a folder is deployed for; other heads stay in the
    file under their stock names, where their own classes find them and this one does not look."""
    if "task" in heads:
        return task_class("Bert", heads["task"])
    return next(name for name, has in ARCHITECTURES.items() if has == set(heads))

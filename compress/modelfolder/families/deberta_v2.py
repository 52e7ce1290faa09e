"""DeBERTa-v2 and -v3 (2006.03654, 2111.09543) as transformers writes them: disentangled attention over one table of
distances, whose vectors each layer projects by its own query and key matrices, and a classification head with a gelu
layer on the first token."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, HeadKind
from compress.encoder.config.relative import Disentangled
from compress.errors import UserError
from compress.modelfolder import fields as f
from compress.modelfolder.family import (
    Description,
    Shapes,
    describe_unsupported,
    expand_layers,
    expand_weights_and_biases,
    has_prefix,
    list_decoder_copies,
)
from compress.modelfolder.fields import Fields
from compress.modelfolder.stock import Stock, bert_embeddings

BODY = "deberta."
LAYER = {
    "encoder.layers.{i}.attention.query": BODY + "encoder.layer.{i}.attention.self.query_proj",
    "encoder.layers.{i}.attention.key": BODY + "encoder.layer.{i}.attention.self.key_proj",
    "encoder.layers.{i}.attention.value": BODY + "encoder.layer.{i}.attention.self.value_proj",
    "encoder.layers.{i}.attention.output": BODY + "encoder.layer.{i}.attention.output.dense",
    "encoder.layers.{i}.attention_norm": BODY + "encoder.layer.{i}.attention.output.LayerNorm",
    "encoder.layers.{i}.feed_forward.up": BODY + "encoder.layer.{i}.intermediate.dense",
    "encoder.layers.{i}.feed_forward.down": BODY + "encoder.layer.{i}.output.dense",
    "encoder.layers.{i}.output_norm": BODY + "encoder.layer.{i}.output.LayerNorm",
}
OTHER_CLASSES = {"Model": frozenset(), "ForMaskedLM": frozenset({"mlm"})}
OLD_MLM, NEW_MLM = "cls.predictions.", "lm_predictions.lm_head."
"""The masked-LM head of the classes with `legacy: true`, and that of the authors' code and checkpoints."""


def _mlm(dense: str, body: str) -> dict[str, str]:
    names = {"heads.mlm.dense": f"{dense}dense", "heads.mlm.norm": f"{dense}LayerNorm"}
    return expand_weights_and_biases(names) | {"heads.mlm.bias": f"{body}bias"}


HEADS: Mapping[HeadKind, Mapping[str, str]] = {
    "masked_lm": _mlm(f"{OLD_MLM}transform.", OLD_MLM),
    "classification": expand_weights_and_biases(
        {"heads.task.dense": "pooler.dense", "heads.task.classifier": "classifier"}
    ),
    "token_classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
    "question_answering": expand_weights_and_biases({"heads.task.classifier": "qa_outputs"}),
}
HELD = {"mlm": (OLD_MLM, NEW_MLM), "task": ("classifier.", "qa_outputs.")}
COPIES = list_decoder_copies(OLD_MLM, BODY)
KEYS = {"classifier_dropout": "cls_dropout", "type_vocab_size": ""}  # which may be 0 here
DEFAULTS = {"layer_norm_eps": 1e-7}
UNREAD = ("mask_predictions.", f"{BODY}embeddings.position_embeddings.")
"""What transformers' classes leave unread too: the head of the authors' pretraining, and a table of positions that the
config does not use."""
TERMS = {"c2p": "content_to_position", "p2c": "position_to_content"}


class Family(Stock):
    model_type = "deberta-v2"
    classes = "DebertaV2"
    body = BODY
    bare = ("embeddings.", "encoder.")
    style = "deberta"
    other_classes = OTHER_CLASSES
    heads = HEADS
    held = HELD
    copies = COPIES
    expresses = frozenset({"disentangled"})
    keys = KEYS
    defaults = DEFAULTS

    # --- names ------------------------------------------------------------------------------------------------

    def body_names(self, config: EncoderConfig) -> dict[str, str]:
        names = bert_embeddings(BODY) | expand_layers(LAYER, config.depth)
        if not config.segments:
            del names["encoder.embeddings.segment.weight"]
        if config.positions == "none":
            del names["encoder.embeddings.position.weight"]
        if config.disentangled is not None:
            names["encoder.distances.weight"] = f"{BODY}encoder.rel_embeddings.weight"
            if config.disentangled.norm:
                names |= expand_weights_and_biases({"encoder.distances.norm": f"{BODY}encoder.LayerNorm"})
        return names

    def _all_names(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, str]:
        names = super()._all_names(config, heads)
        return names if _is_legacy(heads) else names | _mlm(NEW_MLM, NEW_MLM)

    # --- reading ----------------------------------------------------------------------------------------------

    def describe(self, fields: Fields, shapes: Shapes) -> Description:
        found = super().describe(fields, shapes)
        stored = set(found.names.values())
        unread = [name for name in shapes if name.startswith(UNREAD) and name not in stored]
        return dataclasses.replace(found, ignored=found.ignored.union(unread))

    def read_heads(self, fields: Fields, shapes: Shapes) -> dict[str, HeadConfig]:
        """The masked-LM head is that of which there are tensors, else that of the config."""
        found = super().read_heads(fields, shapes)
        if "mlm" in found:
            legacy = has_prefix(shapes, OLD_MLM) or (not has_prefix(shapes, NEW_MLM) and fields.flag("legacy", True))
            found["mlm"] = dataclasses.replace(found["mlm"], style="bert" if legacy else self.style)
        if "task" in found and found["task"].kind == "classification":
            self._check_pooler(fields)
        return found

    def _check_pooler(self, fields: Fields) -> None:
        hidden = fields.values.get("hidden_size")
        fields.refuse("pooler_hidden_act", ("gelu",), "the classification head has a gelu layer")
        fields.refuse("pooler_hidden_size", (hidden,), "the classification head is as wide as the hidden size")
        fields.refuse("pooler_dropout", (0, 0.0), "the classification head has dropout before its last matrix alone")

    def adapt(self, head: HeadConfig, fields: Fields) -> HeadConfig:
        """A new masked-LM head is the one that transformers' classes have where the config does not say otherwise."""
        adapted = super().adapt(head, fields)
        legacy = head.kind == "masked_lm" and fields.flag("legacy", True)
        return dataclasses.replace(adapted, style="bert") if legacy else adapted

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        values = super().encoder_values(fields)
        hidden, heads = values["hidden"], values["layers"][0].heads
        fields.refuse("conv_kernel_size", (0,), "a convolution after the first layer is not supported")
        fields.refuse("embedding_size", (hidden,), "embeddings of another width than hidden_size are not supported")
        fields.refuse("attention_head_size", (hidden // heads,), "heads must add up to hidden_size")
        if not fields.flag("relative_attention"):
            raise UserError(
                "relative_attention false is not supported in a DeBERTa-v2",
                where=fields.where,
                why="only disentangled attention is",
            )
        if not fields.flag("share_att_key"):
            raise UserError(
                "share_att_key false is not supported",
                where=fields.where,
                why="distances must be projected by the query and key matrices of the tokens",
            )
        absolute = fields.flag("position_biased_input", True)
        return values | {
            "segments": fields.integer("type_vocab_size", least=0, most=f.MAX_SEGMENTS, default=0),
            "positions": "learned" if absolute else "none",
            "disentangled": self._distances(fields, values["max_positions"]),
        }

    def _distances(self, fields: Fields, positions: int) -> Disentangled:
        most = fields.integer("max_relative_positions", least=-1, most=f.MAX_POSITIONS, default=-1)
        buckets = fields.integer("position_buckets", least=-1, most=f.MAX_POSITIONS, default=-1)
        most = most if most > 0 else positions
        terms = _words(fields, "pos_att_type", tuple(TERMS))
        if not terms:
            raise fields.wrong("pos_att_type", "c2p, p2c or both")
        return Disentangled(
            span=buckets if buckets > 0 else most,
            max_distance=most if buckets > 0 else None,
            norm="layer_norm" in _words(fields, "norm_rel_ebd", ("none", "layer_norm")),
            **{name: term in terms for term, name in TERMS.items()},
        )

    # --- writing ----------------------------------------------------------------------------------------------

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if (reason := describe_unsupported(config, self.expresses)) is not None:
            return reason
        if config.disentangled is None:
            return "it has no disentangled attention"
        if config.positions == "sinusoidal":
            return "its positions are fixed sinusoids, not a learned table"
        if config.pooler:
            return "it has a pooler"
        task = heads.get("task")
        if task is not None and task.kind != "classification" and task.dropout not in (None, config.dropout):
            return "its task head has another dropout than its encoder"
        return self.head_objection(config, heads)

    def read_dropout(self, fields: Fields, kind: HeadKind) -> float | None:
        return super().read_dropout(fields, kind) if kind == "classification" else None

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        values = super().stock_values(config, heads) | {"type_vocab_size": config.segments}
        table = config.disentangled
        if table is None:  # no class of this family computes it, and what it would compute matters to nobody
            return values | {"relative_attention": False}
        most = table.span if table.max_distance is None else table.max_distance
        return values | {
            "relative_attention": True,
            "position_biased_input": config.positions != "none",
            "share_att_key": True,
            "pos_att_type": [term for term, name in TERMS.items() if getattr(table, name)],
            "max_relative_positions": most,
            "position_buckets": -1 if table.max_distance is None else table.span,
            "norm_rel_ebd": "layer_norm" if table.norm else "none",
            "pooler_dropout": 0,
            "pooler_hidden_act": "gelu",
            "pooler_hidden_size": config.hidden,
            "legacy": _is_legacy(heads),
        }


def _is_legacy(heads: Mapping[str, HeadConfig]) -> bool:
    """Whether the masked-LM head, if any, has the names of the classes with `legacy: true`."""
    return "mlm" not in heads or heads["mlm"].style != Family.style


def _words(fields: Fields, name: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """A list of words, or one string of words with | between them. Raises UserError for other words."""
    value: Any = fields.values.get(name)
    words = value.lower().split("|") if isinstance(value, str) else [] if value is None else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word.strip() in allowed for word in words):
        raise fields.wrong(name, ", ".join(allowed))
    return tuple(word.strip() for word in words)

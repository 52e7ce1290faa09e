"""MPNet (2004.09297) as transformers writes it: BERT's layers with a relative position bias that all of them share, no
segments, positions that start at row 2, and a classification head with a tanh layer on `<s>`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, HeadKind
from compress.encoder.config.relative import RelativeBias
from compress.errors import UserError
from compress.modelfolder.families import roberta
from compress.modelfolder.family import describe_unsupported, expand_layers, list_decoder_copies
from compress.modelfolder.fields import Fields
from compress.modelfolder.stock import Stock, bert_embeddings

BODY = "mpnet."
PAD = 1  # written into the classes: what padding is, and what positions are counted from
OFFSET = PAD + 1
BIAS = RelativeBias()
LAYER = {
    "encoder.layers.{i}.attention.query": BODY + "encoder.layer.{i}.attention.attn.q",
    "encoder.layers.{i}.attention.key": BODY + "encoder.layer.{i}.attention.attn.k",
    "encoder.layers.{i}.attention.value": BODY + "encoder.layer.{i}.attention.attn.v",
    "encoder.layers.{i}.attention.output": BODY + "encoder.layer.{i}.attention.attn.o",
    "encoder.layers.{i}.attention_norm": BODY + "encoder.layer.{i}.attention.LayerNorm",
    "encoder.layers.{i}.feed_forward.up": BODY + "encoder.layer.{i}.intermediate.dense",
    "encoder.layers.{i}.feed_forward.down": BODY + "encoder.layer.{i}.output.dense",
    "encoder.layers.{i}.output_norm": BODY + "encoder.layer.{i}.output.LayerNorm",
}
COPIES = list_decoder_copies("lm_head.", BODY)
KEYS = {"type_vocab_size": "", "classifier_dropout": ""}
DEFAULTS = {"pad_token_id": PAD}
BUCKETS = "relative_attention_num_buckets"


class Family(Stock):
    model_type = "mpnet"
    classes = "MPNet"
    body = BODY
    style = "roberta"
    other_classes = roberta.OTHER_CLASSES
    heads = roberta.HEADS
    held = roberta.HELD
    copies = COPIES
    expresses = frozenset({"offset", "relative_bias"})
    mlm_activation = "gelu"
    keys = KEYS
    defaults = DEFAULTS

    def body_names(self, config: EncoderConfig) -> dict[str, str]:
        names = bert_embeddings(BODY) | expand_layers(LAYER, config.depth)
        del names["encoder.embeddings.segment.weight"]
        return names | {"encoder.relative.weight": f"{BODY}encoder.relative_attention_bias.weight"}

    def read_dropout(self, fields: Fields, kind: HeadKind) -> float | None:
        return None

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        fields.refuse(BUCKETS, (BIAS.buckets,), f"MPNet's classes compute with {BIAS.buckets} buckets")
        values = super().encoder_values(fields)
        if values["pad_id"] != PAD:
            raise UserError(
                f"pad_token_id {values['pad_id']} is not supported in an MPNet",
                where=fields.where,
                why=f"MPNet's classes count positions by padding id {PAD}",
            )
        positions = values["max_positions"] - OFFSET
        if positions < 1:
            raise UserError(
                f"max_position_embeddings is {values['max_positions']}",
                where=fields.where,
                why=f"positions start at row {OFFSET}",
            )
        return values | {"max_positions": positions, "position_offset": OFFSET, "relative_bias": BIAS}

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if (reason := describe_unsupported(config, self.expresses)) is not None:
            return reason
        if config.relative_bias is None:
            return "it has no relative position bias"
        if not config.relative_bias.shared:
            return "its layers have relative position biases of their own"
        if config.relative_bias != BIAS:
            return f"its relative position bias has {config.relative_bias.buckets} buckets, where MPNet's has 32"
        if (config.position_offset, config.pad_id) != (OFFSET, PAD):
            return f"its positions start at row {config.position_offset} and its padding id is {config.pad_id}"
        if config.positions == "sinusoidal":
            return "its positions are fixed sinusoids, not a learned table"
        if config.segments:
            return "it has segment embeddings"
        for head in heads.values():
            if head.name == "task" and head.dropout not in (None, config.dropout):
                return "its task head has another dropout than its encoder"
        return self.head_objection(config, heads)

    def adapt(self, head: HeadConfig, fields: Fields) -> HeadConfig:
        """MPNet's config has no dropout for heads: they have the encoder's."""
        return dataclasses.replace(super().adapt(head, fields), dropout=None)

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        return super().stock_values(config, heads) | {BUCKETS: BIAS.buckets}

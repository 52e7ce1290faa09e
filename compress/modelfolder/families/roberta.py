"""RoBERTa (1907.11692) as transformers writes it: BERT's layers, positions that start after the padding id, one
segment, no pooler in the classes with a head, and a classification head with a tanh layer on `<s>`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, HeadKind
from compress.errors import UserError
from compress.modelfolder.family import expand_weights_and_biases, list_decoder_copies
from compress.modelfolder.fields import Fields
from compress.modelfolder.stock import Stock

BODY = "roberta."
OTHER_CLASSES = {"Model": frozenset(), "ForMaskedLM": frozenset({"mlm"})}
HEADS: Mapping[HeadKind, Mapping[str, str]] = {
    "masked_lm": {
        **expand_weights_and_biases({"heads.mlm.dense": "lm_head.dense", "heads.mlm.norm": "lm_head.layer_norm"}),
        "heads.mlm.bias": "lm_head.bias",
    },
    "classification": expand_weights_and_biases(
        {"heads.task.dense": "classifier.dense", "heads.task.classifier": "classifier.out_proj"}
    ),
    "token_classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
    "question_answering": expand_weights_and_biases({"heads.task.classifier": "qa_outputs"}),
}
HELD = {"mlm": ("lm_head.",), "task": ("classifier.", "qa_outputs.")}
COPIES = list_decoder_copies("lm_head.", BODY)
DEFAULTS = {"pad_token_id": 1}


class Family(Stock):
    model_type = "roberta"
    classes = "Roberta"
    body = BODY
    style = "roberta"
    other_classes = OTHER_CLASSES
    heads = HEADS
    held = HELD
    copies = COPIES
    expresses = frozenset({"offset"})
    mlm_activation = "gelu"
    defaults = DEFAULTS

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        """Real tokens are counted from pad_token_id + 1: the rows before are never read."""
        values = super().encoder_values(fields)
        offset = values["pad_id"] + 1
        positions = values["max_positions"] - offset
        if positions < 1:
            raise UserError(
                f"max_position_embeddings is {values['max_positions']}",
                where=fields.where,
                why=f"positions start at row {offset}, after pad_token_id {values['pad_id']}",
            )
        return values | {"max_positions": positions, "position_offset": offset}

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if config.position_offset != config.pad_id + 1:
            return f"its positions start at row {config.position_offset}, not after its padding id {config.pad_id}"
        return super().objection(config, heads)

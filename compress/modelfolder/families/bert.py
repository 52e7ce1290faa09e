"""BERT (1810.04805) as transformers writes it, and every checkpoint of its shape: the bare model, masked LM, sentence
pairs, and the task classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, HeadKind
from compress.errors import UserError, printable
from compress.modelfolder.family import expand_weights_and_biases, list_decoder_copies
from compress.modelfolder.fields import Fields
from compress.modelfolder.stock import Stock

BODY = "bert."
HEADS: Mapping[HeadKind, Mapping[str, str]] = {
    "masked_lm": {
        **expand_weights_and_biases(
            {
                "heads.mlm.dense": "cls.predictions.transform.dense",
                "heads.mlm.norm": "cls.predictions.transform.LayerNorm",
            }
        ),
        "heads.mlm.bias": "cls.predictions.bias",
    },
    "sentence_pair": expand_weights_and_biases({"heads.pair.classifier": "cls.seq_relationship"}),
    "classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
    "token_classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
    "question_answering": expand_weights_and_biases({"heads.task.classifier": "qa_outputs"}),
}
HELD = {"mlm": ("cls.predictions.",), "pair": ("cls.seq_relationship.",), "task": ("classifier.", "qa_outputs.")}
OTHER_CLASSES = {
    "Model": frozenset(),
    "ForMaskedLM": frozenset({"mlm"}),
    "ForPreTraining": frozenset({"mlm", "pair"}),
    "ForNextSentencePrediction": frozenset({"pair"}),
}
# Written by some savers beside the tensor that it is tied to.
COPIES = list_decoder_copies("cls.predictions.", BODY)


class Family(Stock):
    model_type = "bert"
    classes = "Bert"
    body = BODY
    style = "bert"
    other_classes = OTHER_CLASSES
    heads = HEADS
    held = HELD
    copies = COPIES

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        size = fields.values.get("embedding_size")
        if size is not None and size != fields.values.get("hidden_size"):
            raise UserError(
                f"embedding_size {printable(repr(size), 40)} is not supported in a BERT",
                where=fields.where,
                why="BERT's embeddings have width hidden_size",
            )
        return super().encoder_values(fields)

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        return super().stock_values(config, heads) | {"position_embedding_type": "absolute"}

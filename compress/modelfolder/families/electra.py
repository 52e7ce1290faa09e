"""ELECTRA (2003.10555) as transformers writes it: BERT's layers behind embeddings of a width of their own, no pooler,
the generator's masked-LM head, the discriminator's replaced-token head, and the task classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, HeadKind
from compress.modelfolder import fields as f
from compress.modelfolder.family import expand_weights_and_biases
from compress.modelfolder.fields import Fields
from compress.modelfolder.stock import Stock

BODY = "electra."
OTHER_CLASSES = {
    "Model": frozenset(),
    "ForMaskedLM": frozenset({"mlm"}),
    "ForPreTraining": frozenset({"rtd"}),
}
HEADS: Mapping[HeadKind, Mapping[str, str]] = {
    "masked_lm": {
        **expand_weights_and_biases(
            {
                "heads.mlm.dense": "generator_predictions.dense",
                "heads.mlm.norm": "generator_predictions.LayerNorm",
            }
        ),
        "heads.mlm.bias": "generator_lm_head.bias",
    },
    "replaced_token": expand_weights_and_biases(
        {
            "heads.rtd.dense": "discriminator_predictions.dense",
            "heads.rtd.classifier": "discriminator_predictions.dense_prediction",
        }
    ),
    "classification": expand_weights_and_biases(
        {"heads.task.dense": "classifier.dense", "heads.task.classifier": "classifier.out_proj"}
    ),
    "token_classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
    "question_answering": expand_weights_and_biases({"heads.task.classifier": "qa_outputs"}),
}
HELD = {
    "mlm": ("generator_predictions.", "generator_lm_head."),
    "rtd": ("discriminator_predictions.",),
    "task": ("classifier.", "qa_outputs."),
}
COPIES = {"generator_lm_head.weight": f"{BODY}embeddings.word_embeddings.weight"}


class Family(Stock):
    model_type = "electra"
    classes = "Electra"
    body = BODY
    bare = ("embeddings.", "embeddings_project.", "encoder.")
    style = "electra"
    other_classes = OTHER_CLASSES
    heads = HEADS
    held = HELD
    copies = COPIES
    expresses = frozenset({"embedding"})
    mlm_activation = "gelu"

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        width = fields.integer("embedding_size", most=f.MAX_WIDTH, default=128)
        return super().encoder_values(fields) | {"embedding": width}

    def body_names(self, config: EncoderConfig) -> dict[str, str]:
        projection = expand_weights_and_biases({"encoder.embeddings.projection": f"{BODY}embeddings_project"})
        return super().body_names(config) | (projection if config.width != config.hidden else {})

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        return "it has a pooler" if config.pooler else super().objection(config, heads)

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        return super().stock_values(config, heads) | {"embedding_size": config.width}

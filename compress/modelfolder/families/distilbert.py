"""DistilBERT (1910.01108) as transformers writes it: the bare model, masked LM, and the task classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, HeadKind
from compress.modelfolder.family import describe_unsupported, expand_layers, expand_weights_and_biases
from compress.modelfolder.fields import Fields
from compress.modelfolder.stock import Stock, bert_embeddings

BODY = "distilbert."
NORM_EPS = 1e-12  # written into the classes, not into their config

LAYER = {
    "encoder.layers.{i}.attention.query": BODY + "transformer.layer.{i}.attention.q_lin",
    "encoder.layers.{i}.attention.key": BODY + "transformer.layer.{i}.attention.k_lin",
    "encoder.layers.{i}.attention.value": BODY + "transformer.layer.{i}.attention.v_lin",
    "encoder.layers.{i}.attention.output": BODY + "transformer.layer.{i}.attention.out_lin",
    "encoder.layers.{i}.attention_norm": BODY + "transformer.layer.{i}.sa_layer_norm",
    "encoder.layers.{i}.feed_forward.up": BODY + "transformer.layer.{i}.ffn.lin1",
    "encoder.layers.{i}.feed_forward.down": BODY + "transformer.layer.{i}.ffn.lin2",
    "encoder.layers.{i}.output_norm": BODY + "transformer.layer.{i}.output_layer_norm",
}
HEADS: Mapping[HeadKind, Mapping[str, str]] = {
    "masked_lm": {
        **expand_weights_and_biases({"heads.mlm.dense": "vocab_transform", "heads.mlm.norm": "vocab_layer_norm"}),
        "heads.mlm.bias": "vocab_projector.bias",
    },
    "classification": expand_weights_and_biases(
        {"heads.task.pre_classifier": "pre_classifier", "heads.task.classifier": "classifier"}
    ),
    "token_classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
    "question_answering": expand_weights_and_biases({"heads.task.classifier": "qa_outputs"}),
}
HELD = {"mlm": ("vocab_",), "task": ("pre_classifier.", "classifier.", "qa_outputs.")}
OTHER_CLASSES = {"Model": frozenset(), "ForMaskedLM": frozenset({"mlm"})}
COPIES = {"vocab_projector.weight": f"{BODY}embeddings.word_embeddings.weight"}
DROPOUTS: Mapping[HeadKind, tuple[str, float]] = {
    "classification": ("seq_classif_dropout", 0.2),
    "question_answering": ("qa_dropout", 0.1),
}
KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "classifier_dropout": "",
    "type_vocab_size": "",
    "layer_norm_eps": "",
}


class Family(Stock):
    model_type = "distilbert"
    classes = "DistilBert"
    body = BODY
    bare = ("embeddings.", "transformer.")
    style = "distilbert"
    other_classes = OTHER_CLASSES
    heads = HEADS
    held = HELD
    copies = COPIES
    keys = KEYS

    def body_names(self, config: EncoderConfig) -> dict[str, str]:
        tables = bert_embeddings(BODY)
        del tables["encoder.embeddings.segment.weight"]
        return tables | expand_layers(LAYER, config.depth)

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        fixed = fields.flag("sinusoidal_pos_embds")
        return super().encoder_values(fields) | {"positions": "sinusoidal" if fixed else "learned"}

    def read_dropout(self, fields: Fields, kind: HeadKind) -> float | None:
        if kind not in DROPOUTS:
            return None
        key, default = DROPOUTS[kind]
        return fields.number(key, least=0, below=1, default=default)

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if (reason := describe_unsupported(config)) is not None:
            return reason
        if config.segments:
            return "it has segment embeddings"
        if config.pooler:
            return "it has a pooler"
        if config.norm_eps != NORM_EPS:
            return f"its norm epsilon is {config.norm_eps:g}, where DistilBERT's is {NORM_EPS:g}"
        return self.head_objection(config, heads)

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        values = super().stock_values(config, heads) | {"sinusoidal_pos_embds": config.positions == "sinusoidal"}
        values["seq_classif_dropout"] = config.dropout
        task = heads.get("task")
        if task is not None and task.kind in DROPOUTS:
            values[DROPOUTS[task.kind][0]] = config.dropout if task.dropout is None else task.dropout
        return values

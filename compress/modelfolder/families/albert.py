"""ALBERT (1909.11942) as transformers writes it: narrow embeddings, projected, and layers that share parameters.

`num_hidden_layers` runs over `num_hidden_groups`; each group holds `inner_group_num` layers that run one after the
other. So there are num_hidden_layers x inner_group_num layers, and the place of a layer says which parameters it uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, HeadKind
from compress.encoder.config.sharing import build_contiguous_groups
from compress.errors import UserError
from compress.modelfolder import fields as f
from compress.modelfolder.family import expand_weights_and_biases, list_decoder_copies
from compress.modelfolder.fields import Fields
from compress.modelfolder.stock import Stock, bert_embeddings

BODY = "albert."
LAYER = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "feed_forward.up": "ffn",
    "feed_forward.down": "ffn_output",
    "output_norm": "full_layer_layer_norm",
}
OTHER_CLASSES = {
    "Model": frozenset(),
    "ForMaskedLM": frozenset({"mlm"}),
    "ForPreTraining": frozenset({"mlm", "pair"}),
}
HEADS: Mapping[HeadKind, Mapping[str, str]] = {
    "masked_lm": {
        **expand_weights_and_biases(
            {"heads.mlm.dense": "predictions.dense", "heads.mlm.norm": "predictions.LayerNorm"}
        ),
        "heads.mlm.bias": "predictions.bias",
    },
    "sentence_pair": expand_weights_and_biases({"heads.pair.classifier": "sop_classifier.classifier"}),
    "classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
    "token_classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
    "question_answering": expand_weights_and_biases({"heads.task.classifier": "qa_outputs"}),
}
HELD = {"mlm": ("predictions.",), "pair": ("sop_classifier.",), "task": ("classifier.", "qa_outputs.")}
COPIES = list_decoder_copies("predictions.", BODY)
DEFAULTS = {
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.1,
}
KEYS = {"classifier_dropout": "classifier_dropout_prob"}


def layer_groups(layers: int, groups: int, inner: int) -> tuple[int, ...]:
    """The group of parameters of each of the layers x inner layers, numbered as they are stored."""
    return tuple(group * inner + place for group in build_contiguous_groups(layers, groups) for place in range(inner))


def layout(config: EncoderConfig) -> tuple[int, int, int] | None:
    """(layers, groups, inner) that wire the layers as this config does; None when ALBERT has no words for it."""
    stored = max(config.groups) + 1
    for inner in range(1, stored + 1):
        if stored % inner or config.depth % inner:
            continue
        found = config.depth // inner, stored // inner, inner
        if layer_groups(*found) == config.groups:
            return found
    return None


class Family(Stock):
    model_type = "albert"
    classes = "Albert"
    body = BODY
    style = "bert"
    other_classes = OTHER_CLASSES
    heads = HEADS
    held = HELD
    copies = COPIES
    expresses = frozenset({"embedding", "groups"})
    keys = KEYS
    defaults = DEFAULTS

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        values = super().encoder_values(fields)
        layers = len(values["layers"])
        groups = fields.integer("num_hidden_groups", most=f.MAX_LAYERS, default=1)
        inner = fields.integer("inner_group_num", most=f.MAX_LAYERS, default=1)
        width = fields.integer("embedding_size", most=f.MAX_WIDTH, default=128)
        if groups > layers:
            raise UserError(
                f"num_hidden_groups {groups} is above num_hidden_layers {layers}",
                where=fields.where,
                why="some groups would not be used by any layer",
            )
        if width == values["hidden"]:
            raise UserError(
                f"embedding_size {width} equal to hidden_size is not supported in an ALBERT",
                where=fields.where,
                why="the embedding projection would have equal input and output widths",
            )
        return values | {
            "layers": values["layers"][:1] * (layers * inner),
            "layer_groups": layer_groups(layers, groups, inner),
            "embedding": width,
        }

    def body_names(self, config: EncoderConfig) -> dict[str, str]:
        """Each group of parameters once, in ALBERT's group and inner layer."""
        found = layout(config)
        assert found is not None
        inner = found[2]
        modules = {"encoder.embeddings.projection": f"{BODY}encoder.embedding_hidden_mapping_in"}
        for group in range(found[1] * inner):
            theirs = f"{BODY}encoder.albert_layer_groups.{group // inner}.albert_layers.{group % inner}."
            modules |= {f"encoder.layers.{group}.{ours}": theirs + name for ours, name in LAYER.items()}
        return bert_embeddings(BODY) | expand_weights_and_biases(modules)

    def pooler_names(self) -> dict[str, str]:
        return expand_weights_and_biases({"encoder.pooler.dense": f"{BODY}pooler"})

    def read_heads(self, fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, HeadConfig]:
        """The sentence-order head has the task head's dropout."""
        found = super().read_heads(fields, shapes)
        if "pair" in found:
            found["pair"] = HeadConfig("sentence_pair", dropout=self.read_dropout(fields, "sentence_pair"))
        return found

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if config.width == config.hidden:
            return "its embeddings are not projected"
        if layout(config) is None:
            return "the order in which its layers share parameters is not ALBERT's"
        return super().objection(config, heads)

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        # Of layers in another order than ALBERT's, which no class of it computes, how many there are.
        layers, groups, inner = layout(config) or (config.depth, max(config.groups) + 1, 1)
        own = [head.dropout for name, head in heads.items() if name in ("task", "pair")]
        dropout = next((p for p in own if p is not None), config.dropout if "task" in heads else 0.0)
        return super().stock_values(config, heads) | {
            "num_hidden_layers": layers,
            "num_hidden_groups": groups,
            "inner_group_num": inner,
            "embedding_size": config.width,
            "classifier_dropout_prob": dropout,
        }

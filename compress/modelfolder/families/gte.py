"""GTE (2407.19669) as transformers writes it: BERT's norms after each block, with rotary positions and gated
feed-forward parts (GeGLU); the stored names are those of the authors' own code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig, HeadKind
from compress.modelfolder import fields as f
from compress.modelfolder import rotary
from compress.modelfolder.family import expand_layers, expand_weights_and_biases
from compress.modelfolder.fields import Fields
from compress.modelfolder.stock import Stock

BODY = "gte."
OLD_BODY = "new."
BASE = 160_000.0
LAYER = BODY + "encoder.layer.{i}."
EMBEDDINGS = {
    "encoder.embeddings.word.weight": f"{BODY}embeddings.word_embeddings.weight",
    **expand_weights_and_biases({"encoder.embeddings.norm": f"{BODY}embeddings.LayerNorm"}),
}
SEGMENTS = {"encoder.embeddings.segment.weight": f"{BODY}embeddings.token_type_embeddings.weight"}
MODULES = {
    "encoder.layers.{i}.attention.output": f"{LAYER}attention.o_proj",
    "encoder.layers.{i}.attention_norm": f"{LAYER}attn_ln",
    "encoder.layers.{i}.feed_forward.down": f"{LAYER}mlp.down_proj",
    "encoder.layers.{i}.output_norm": f"{LAYER}mlp_ln",
}
UP = {"encoder.layers.{i}.feed_forward.up": f"{LAYER}mlp.up_gate_proj"}
HEADS: Mapping[HeadKind, Mapping[str, str]] = {
    "masked_lm": {
        **expand_weights_and_biases({"heads.mlm.dense": "lm_head.dense", "heads.mlm.norm": "lm_head.norm"}),
        "heads.mlm.bias": "lm_head.decoder.bias",
    },
    "classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
    "token_classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
}


class Family(Stock):
    model_type = "gte"
    classes = "Gte"
    body = BODY
    style = "bert"
    other_classes: Mapping[str, frozenset[str]] = {"Model": frozenset(), "ForMaskedLM": frozenset({"mlm"})}
    heads = HEADS
    held: Mapping[str, tuple[str, ...]] = {"mlm": ("lm_head.",), "task": ("classifier.",)}
    copies: Mapping[str, str] = {"lm_head.decoder.weight": EMBEDDINGS["encoder.embeddings.word.weight"]}
    expresses = frozenset({"rotary", "gated", "no_gate_bias"})
    needs_segments = False
    mlm_activation = "gelu"
    keys: Mapping[str, str] = {"type_vocab_size": ""}  # 0 is allowed, and 1 the default
    defaults: Mapping[str, Any] = {
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 8192,
        "pad_token_id": 1,
    }

    # --- names ------------------------------------------------------------------------------------------------

    def canonical(self, name: str) -> str:
        name = super().canonical(name)
        return BODY + name.removeprefix(OLD_BODY) if name.startswith(OLD_BODY) else name

    def body_names(self, config: EncoderConfig) -> dict[str, str]:
        """Queries, keys and values are one tensor (`_all_fused`)."""
        layers = expand_layers(MODULES, config.depth) | expand_layers(UP, config.depth, ("weight",))
        return EMBEDDINGS | (SEGMENTS if config.segments else {}) | layers

    def _all_fused(self, config: EncoderConfig) -> dict[str, tuple[str, ...]]:
        return {
            f"{LAYER.format(i=i)}attention.qkv_proj.{kind}": tuple(
                f"encoder.layers.{i}.attention.{part}.{kind}" for part in ("query", "key", "value")
            )
            for i in range(config.depth)
            for kind in ("weight", "bias")
        }

    def list_swapped_tensors(self, config: EncoderConfig) -> frozenset[str]:
        """What multiplies comes before what the activation acts on."""
        return frozenset(expand_layers(UP, config.depth, ("weight",)))

    # --- reading ----------------------------------------------------------------------------------------------

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        values = super().encoder_values(fields)
        base = rotary.read_base(fields, BASE)
        return values | {
            "gate_bias": False,
            "gated": True,
            "positions": "rotary",
            "rotary_bases": (base,) * len(values["layers"]),
            "segments": fields.integer("type_vocab_size", least=0, most=f.MAX_SEGMENTS, default=1),
        }

    # --- writing ----------------------------------------------------------------------------------------------

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if not config.gated or not config.layer_bias or config.gate_bias:
            return "its layers are not GTE's: gated, with biases in all but the first feed-forward matrix"
        return rotary.find_objection(config) or super().objection(config, heads)

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        own = {"type_vocab_size": config.segments} | rotary.write_base(config, BASE)
        return super().stock_values(config, heads) | own

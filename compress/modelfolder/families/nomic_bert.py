"""NomicBERT (2402.01613) as transformers writes it: BERT's norms after each block, with rotary positions, gated
feed-forward parts (SwiGLU) and matrices without biases; and as the authors' own code wrote it, with GPT-2's keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import Activation, EncoderConfig, HeadConfig, HeadKind
from compress.modelfolder import fields as f
from compress.modelfolder import rotary
from compress.modelfolder.family import (
    Description,
    Shapes,
    expand_layers,
    expand_weights_and_biases,
    list_decoder_copies,
)
from compress.modelfolder.fields import Fields
from compress.modelfolder.heads import ACTIVATIONS
from compress.modelfolder.stock import Stock

BODY = "nomic_bert."
OLD_BODY = "bert."
BASE, OLD_BASE = 1_000.0, 10_000.0
LAYER = BODY + "encoder.layers.{i}."

EMBEDDINGS = {
    "encoder.embeddings.word.weight": f"{BODY}embeddings.word_embeddings.weight",
    "encoder.embeddings.segment.weight": f"{BODY}embeddings.token_type_embeddings.weight",
    **expand_weights_and_biases({"encoder.embeddings.norm": f"{BODY}emb_ln"}),
}
NORMS = {
    "encoder.layers.{i}.attention_norm": f"{LAYER}norm1",
    "encoder.layers.{i}.output_norm": f"{LAYER}norm2",
}
MATRICES = {
    "encoder.layers.{i}.attention.output": f"{LAYER}attn.out_proj",
    "encoder.layers.{i}.feed_forward.down": f"{LAYER}mlp.fc2",
}
HEADS: Mapping[HeadKind, Mapping[str, str]] = {
    "masked_lm": {
        **expand_weights_and_biases(
            {
                "heads.mlm.dense": "cls.predictions.transform.dense",
                "heads.mlm.norm": "cls.predictions.transform.layer_norm",
            }
        ),
        "heads.mlm.bias": "cls.predictions.bias",
    },
    "classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
    "token_classification": expand_weights_and_biases({"heads.task.classifier": "classifier"}),
}
HELD = {"mlm": ("cls.predictions.",), "task": ("classifier.",)}
OTHER_CLASSES = {"Model": frozenset(), "ForMaskedLM": frozenset({"mlm"})}
COPIES = list_decoder_copies("cls.predictions.", BODY)
DEFAULTS = {
    "hidden_act": "silu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 2048,
}

# The authors' code: its keys, its class of the masked-LM head, what it adds to the activations' names, and biases that
# its masked-LM head lacks.
OLD_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
    "max_position_embeddings": "n_positions",
}
OLD_CLASSES = {"NomicBertForPreTraining": "NomicBertForMaskedLM"}
GATED = {"swiglu": "silu", "geglu": "gelu"}
UNBIASED = frozenset({"heads.mlm.dense.bias", "heads.mlm.bias"})
REFUSED = {
    "moe_every_n_layers": ((0,), "layers of experts are not supported"),
    "prenorm": ((False,), "only norms after each block are supported"),
    "parallel_block": ((False,), "attention and feed-forward must follow one another"),
    "use_rms_norm": ((False,), "only layer norms are supported"),
    "causal": ((False,), "only encoders are supported"),
    "qkv_proj_bias": ((False,), "NomicBERT's layers have no biases"),
    "mlp_fc1_bias": ((False,), "NomicBERT's layers have no biases"),
    "mlp_fc2_bias": ((False,), "NomicBERT's layers have no biases"),
    "rotary_emb_interleaved": ((False,), "only rotary positions that rotate both halves of a head are supported"),
    "rotary_emb_scale_base": ((), "only default rotary positions are supported"),
}


class Family(Stock):
    model_type = "nomic_bert"
    classes = "NomicBert"
    body = BODY
    bare = ("embeddings.", "emb_ln.", "encoder.", "pooler.")
    style = "bert"
    other_classes = OTHER_CLASSES
    heads = HEADS
    held = HELD
    copies = COPIES
    expresses = frozenset({"rotary", "gated", "no_linear_bias", "head_width"})
    defaults = DEFAULTS

    # --- names ------------------------------------------------------------------------------------------------

    def canonical(self, name: str) -> str:
        name = super().canonical(name)
        return BODY + name.removeprefix(OLD_BODY) if name.startswith(OLD_BODY) else name

    def body_names(self, config: EncoderConfig) -> dict[str, str]:
        """Queries, keys and values are one tensor (`_all_fused`); what is gated and its gate are two (`_all_split`)."""
        return EMBEDDINGS | expand_layers(NORMS, config.depth) | expand_layers(MATRICES, config.depth, ("weight",))

    def _all_fused(self, config: EncoderConfig) -> dict[str, tuple[str, ...]]:
        return {
            f"{LAYER.format(i=i)}attn.Wqkv.weight": tuple(
                f"encoder.layers.{i}.attention.{part}.weight" for part in ("query", "key", "value")
            )
            for i in range(config.depth)
        }

    def _all_split(self, config: EncoderConfig) -> dict[str, tuple[str, ...]]:
        return {
            f"encoder.layers.{i}.feed_forward.up.weight": tuple(
                f"{LAYER.format(i=i)}mlp.{part}.weight" for part in ("fc12", "fc11")
            )
            for i in range(config.depth)
        }

    # --- reading ----------------------------------------------------------------------------------------------

    def describe(self, fields: Fields, shapes: Shapes) -> Description:
        if "hidden_size" in fields.values or "n_embd" not in fields.values:
            return super().describe(fields, shapes)
        found = super().describe(_respell(fields), shapes)
        stored = {*shapes, *(kept for alias, kept in found.copies.items() if alias in shapes)}
        zeros = frozenset(name for name in UNBIASED if name in found.names and found.names[name] not in stored)
        names = {ours: theirs for ours, theirs in found.names.items() if ours not in zeros}
        return dataclasses.replace(found, names=names, zeros=zeros)

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        values = super().encoder_values(fields)
        if _is_respelled(fields):
            base = _read_old_rotary(fields)
            values["max_positions"] = _old_limit(fields, values["max_positions"])
        else:
            base = rotary.read_base(fields, BASE)
        return values | {
            "linear_bias": False,
            "gated": True,
            "positions": "rotary",
            "rotary_bases": (base,) * len(values["layers"]),
        }

    def read_activation(self, fields: Fields) -> Activation:
        allowed = GATED if _is_respelled(fields) else ACTIVATIONS
        default = "swiglu" if _is_respelled(fields) else "silu"
        return fields.choice("hidden_act", allowed, default)  # pyright: ignore[reportReturnType]

    def read_head_width(self, fields: Fields, hidden: int, heads: int) -> int:
        """transformers' class takes heads of any width."""
        if fields.get("head_dim") is None:
            return super().read_head_width(fields, hidden, heads)
        return fields.integer("head_dim", most=f.MAX_WIDTH)

    # --- writing ----------------------------------------------------------------------------------------------

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if config.layer_bias or not config.bias or not config.gated:
            return "its layers are not NomicBERT's: gated, with biases in the norms alone"
        return rotary.find_objection(config) or super().objection(config, heads)

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        own = {"head_dim": config.layers[0].head_width} | rotary.write_base(config, BASE)
        return super().stock_values(config, heads) | own


def _respell(fields: Fields) -> Fields:
    """The authors' config, with the keys that BERT has for the same."""
    for name, (harmless, reason) in REFUSED.items():
        fields.refuse(name, harmless, reason)
    classes: Any = fields.values.get("architectures")
    if isinstance(classes, list):
        classes = [OLD_CLASSES.get(name, name) if isinstance(name, str) else name for name in classes]
    return Fields({**fields.values, "architectures": classes}, fields.where, OLD_KEYS)


def _is_respelled(fields: Fields) -> bool:
    return fields.spell("hidden_size") != "hidden_size"


def _read_old_rotary(fields: Fields) -> float:
    """θ. Raises UserError unless whole heads are rotated."""
    if fields.number("rotary_emb_fraction", least=0, below=2, default=0.0) != 1:
        raise fields.wrong("rotary_emb_fraction", "1.0")
    return fields.number("rotary_emb_base", least=1.0001, below=1e30, default=OLD_BASE)


def _old_limit(fields: Fields, positions: int) -> int:
    """The longest sequence with the angles of training: with rotary_scaling_factor, the code changes them above
    max_trained_positions."""
    if fields.number("rotary_scaling_factor", least=0, below=1e6, default=0.0) == 0:
        return positions
    return min(positions, fields.integer("max_trained_positions", most=f.MAX_POSITIONS, default=2048))

"""Longformer (2004.05150) as transformers writes it: RoBERTa with windowed attention in every layer, and projections of
their own for global tokens: the first token in sequence classification, none in the other classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.errors import UserError
from compress.modelfolder import fields as f
from compress.modelfolder.families import roberta
from compress.modelfolder.family import Shapes, expand_layers, list_decoder_copies
from compress.modelfolder.fields import Fields

BODY = "longformer."
GLOBALS = {
    f"encoder.layers.{{i}}.attention.globals.{name}": f"{BODY}encoder.layer.{{i}}.attention.self.{name}_global"
    for name in ("query", "key", "value")
}
COPIES = list_decoder_copies("lm_head.", BODY)
HEADS = {kind: names for kind, names in roberta.HEADS.items() if kind != "question_answering"}
HELD = {"mlm": ("lm_head.",), "task": ("classifier.",)}
KEYS = {"classifier_dropout": ""}
QUESTIONS = "ForQuestionAnswering"
WHY_NOT_QUESTIONS = "its global tokens are those of the question, a number that differs from row to row"


class Family(roberta.Family):
    model_type = "longformer"
    classes = "Longformer"
    body = BODY
    heads = HEADS
    held = HELD
    copies = COPIES
    expresses = frozenset({"offset", "windows"})
    keys = KEYS

    # --- reading ----------------------------------------------------------------------------------------------

    def body_names(self, config: EncoderConfig) -> dict[str, str]:
        return super().body_names(config) | expand_layers(GLOBALS, config.depth)

    def adapt_encoder(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> EncoderConfig:
        if not config.global_projections:
            return config
        count, quantization = count_global_tokens(heads), config.quantization
        if not count and quantization is not None:  # what is kept and not used is not quantized
            idle = frozenset(name for name, _ in quantization.modules if ".attention.globals." in name)
            quantization = quantization.without(idle)
        return dataclasses.replace(config, global_tokens=count, quantization=quantization)

    def read_heads(self, fields: Fields, shapes: Shapes) -> dict[str, HeadConfig]:
        named: Any = fields.values.get("architectures")
        if "qa_outputs.weight" in shapes or (isinstance(named, list) and named[:1] == [self.classes + QUESTIONS]):
            raise UserError(
                f"class {self.classes}{QUESTIONS} is not supported", where=fields.where, why=WHY_NOT_QUESTIONS
            )
        return super().read_heads(fields, shapes)

    def encoder_values(self, fields: Fields) -> dict[str, Any]:
        values = super().encoder_values(fields)
        windows = _read_windows(fields, len(values["layers"]))
        return values | {"windows": windows, "global_projections": True}

    # --- writing ----------------------------------------------------------------------------------------------

    def adapt(self, head: HeadConfig, fields: Fields) -> HeadConfig:
        """Longformer's config has no dropout for heads: they have the encoder's."""
        return dataclasses.replace(super().adapt(head, fields), dropout=None)

    def objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if config.windows is None or None in config.windows:
            return "some of its layers have full attention"
        if not config.global_projections:
            return "its global tokens share the projections of the others"
        if config.global_tokens != count_global_tokens(heads):
            return f"it has {config.global_tokens} global tokens"
        task = heads.get("task")
        if task is not None and task.dropout not in (None, config.dropout):
            return "its task head has another dropout than its encoder"
        return super().objection(config, heads)

    def head_objection(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> str | None:
        if any(head.kind == "question_answering" for head in heads.values()):
            return f"{WHY_NOT_QUESTIONS}, in {self.classes}{QUESTIONS}"
        return super().head_objection(config, heads)

    def stock_values(self, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> dict[str, Any]:
        windows = config.windows or (None,) * config.depth
        widths = [2 * (config.max_positions if window is None else window) for window in windows]
        return super().stock_values(config, heads) | {"attention_window": widths}


def count_global_tokens(heads: Mapping[str, HeadConfig]) -> int:
    """As transformers' classes choose them where the caller says nothing."""
    task = heads.get("task")
    return 1 if task is not None and task.kind == "classification" else 0


def _read_windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """Tokens on either side, of each layer: half of attention_window, one number or one for each layer."""
    found: Any = fields.values.get("attention_window", 512)
    widths: Any = found if isinstance(found, list) else [found] * layers
    fitting = [isinstance(w, int) and not isinstance(w, bool) and 2 <= w <= 2 * f.MAX_POSITIONS for w in widths]
    if len(widths) != layers or not all(fitting) or any(width % 2 for width in widths):
        raise fields.wrong("attention_window", f"an even number, or {layers} of them")
    return tuple(width // 2 for width in widths)

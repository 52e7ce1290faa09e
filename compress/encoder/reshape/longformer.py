"""A model with windowed attention in the form of Longformer (2004.05150), which computes the same.

Longformer has projections of their own for global tokens, counts positions from the row after the padding id, always
has a segment table, and has RoBERTa's classification head. Each of these can hold what another BERT-family model has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.encoder.reshape.extend import TABLE

SEGMENTS = "encoder.embeddings.segment.weight"
STYLE = "roberta"


def longformer_config(
    config: EncoderConfig, heads: Mapping[str, HeadConfig]
) -> tuple[EncoderConfig, dict[str, HeadConfig]]:
    """(encoder, heads) of a model with a window in every layer, in Longformer's form.

    Which shapes and heads Longformer has no words for, its family says (`modelfolder/families/longformer.py`).
    Raises UserError for a model that cannot have global projections, such as one with several global tokens.
    """
    made = {
        name: dataclasses.replace(head, style=STYLE, dropout=None) if _can_change_style(head) else head
        for name, head in heads.items()
    }
    learned = config.positions in ("learned", "sinusoidal", "sinusoidal_start")
    encoder = dataclasses.replace(
        config,
        global_projections=True,
        positions="learned" if learned else config.positions,
        position_offset=config.pad_id + 1,
        segments=config.segments or 1,
        pooler=config.pooler if not heads else any(head.needs_pooler for head in made.values()),
    )
    return encoder, made


def _can_change_style(head: HeadConfig) -> bool:
    """A linear layer per token is the same in each style; BERT's pooler is RoBERTa's dense layer."""
    return head.name == "task" and (head.style in ("bert", STYLE) or (head.per_token and not head.transforms))


def to_longformer(model: Model, config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> Model:
    """A model of `longformer_config` with the weights of `model` and the same outputs.

    The projections of global tokens are copies of those of the other tokens, as Longformer initializes them.
    """
    state: dict[str, Tensor] = dict(model.state_dict())
    used = state[TABLE][model.config.position_offset :]
    state[TABLE] = torch.cat([used.new_zeros(config.position_offset, used.shape[1]), used])
    if not model.config.segments:
        state[SEGMENTS] = used.new_zeros(config.segments, used.shape[1])
    for layer in range(config.depth):
        attention = f"encoder.layers.{layer}.attention."
        for name in list(state):
            own = name.removeprefix(attention)
            if own != name and own.partition(".")[0] in ("query", "key", "value"):
                state[f"{attention}globals.{own}"] = state[name]
    task = model.head_configs.get("task")
    if task is not None and task.needs_pooler:
        for part in ("weight", "bias"):
            state[f"heads.task.dense.{part}"] = state[f"encoder.pooler.dense.{part}"]
    with torch.device("meta"):
        made = Model(config, heads)
    kept = {name: state[name].detach().clone() for name in made.state_dict()}
    made.load_state_dict(kept, assign=True)
    return made.requires_grad_(True).train(model.training)

"""A model and heads behind its layers, as a model that exits early."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import nn

from compress.encoder.config.exits import ExitConfig
from compress.encoder.modules.model import Model


def add_exits(model: Model, exits: Sequence[ExitConfig], heads: Sequence[nn.Linear]) -> Model:
    """The model with these exits in place of any it has, on its device; its tensors are those of `model`, not copies.

    heads: (2 D → C) of each exit, on any device. Raises UserError for layers that the model does not have, or not in
    their order.
    """
    task = dataclasses.replace(model.head_configs["task"], exits=tuple(exits))
    with torch.device("meta"):
        made = Model(model.config, {**model.head_configs, "task": task})
    device = model.encoder.embeddings.word.weight.device
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("exits.")}
    for place, head in enumerate(heads):
        state |= {f"exits.{place}.{name}": tensor.detach().to(device) for name, tensor in head.state_dict().items()}
    made.load_state_dict(state, assign=True)
    return made.requires_grad_(False).eval()

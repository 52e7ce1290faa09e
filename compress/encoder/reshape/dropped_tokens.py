"""A model as one that drops tokens between its layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from compress.encoder.modules.model import Model


def drop_tokens(model: Model, kept: Sequence[int] | None) -> Model:
    """The model with `kept` percent of a text's tokens after each layer (`EncoderConfig.kept_tokens`), None for all;
    its tensors are those of `model`, not copies.

    Raises UserError for a model that cannot do without some tokens.
    """
    config = dataclasses.replace(model.config, kept_tokens=None if kept is None else tuple(kept))
    with torch.device("meta"):
        made = Model(config, model.head_configs)
    made.load_state_dict(model.state_dict(), assign=True)
    return made.train(model.training)

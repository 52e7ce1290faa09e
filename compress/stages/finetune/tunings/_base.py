"""What every way to choose the trained parameters offers, and what they share."""

from __future__ import annotations

from typing import ClassVar

import torch

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.model import Model


class Base:
    """All parameters are trained; the other kinds change what they must."""

    rate: ClassVar[float] = 1.0
    """Factor of the learning rate that the hidden size suggests for training all parameters."""

    def check(self, config: EncoderConfig, where: str) -> None:
        """Raise UserError for an encoder that does not allow it. where: its folder, for messages."""

    def apply(self, model: Model, generator: torch.Generator, *, new_pooler: bool = False) -> None:
        """Freeze what is not trained, and add what is trained in its place. generator: of random weights.  new_pooler:
        the pooler has random weights, and is a part of the new head."""

    def finish(self, model: Model) -> None:
        """Give the model its own modules back, with what was trained."""


def freeze_encoder(model: Model, new_pooler: bool) -> None:
    """Leave only the heads to train, and a new pooler."""
    model.encoder.requires_grad_(False)
    if new_pooler and model.encoder.pooler is not None:
        model.encoder.pooler.requires_grad_(True)

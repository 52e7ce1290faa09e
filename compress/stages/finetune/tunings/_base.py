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

    def apply(self, model: Model, generator: torch.Generator) -> None:
        """Freeze what is not trained, and add what is trained in its place. generator: of random weights."""

    def finish(self, model: Model) -> None:
        """Give the model its own modules back, with what was trained."""


def freeze_encoder(model: Model) -> None:
    """Leave only the heads to train."""
    model.encoder.requires_grad_(False)

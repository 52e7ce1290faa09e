"""BitFit (Ben Zaken et al. 2022, arXiv 2106.10199): only the biases of the encoder are trained, and the task head."""

from __future__ import annotations

from typing import ClassVar

import torch

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.finetune.tunings._base import Base, freeze_encoder


class Tuning(Base):
    """Train the biases, those of the layer norms among them, and the task head."""

    rate: ClassVar[float] = 10.0

    def check(self, config: EncoderConfig, where: str) -> None:
        """Raises UserError for an encoder without biases."""
        if not config.bias:
            raise UserError("this encoder has no biases to train", where=where, do="use --tune lora or last-N")

    def apply(self, model: Model, generator: torch.Generator, *, new_pooler: bool = False) -> None:
        """Freeze everything else."""
        freeze_encoder(model, new_pooler)
        for name, parameter in model.encoder.named_parameters():
            if name.rpartition(".")[2] == "bias":
                parameter.requires_grad_(True)

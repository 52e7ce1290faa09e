"""Train the upper layers only: those below keep what pretraining gave them (Lee et al. 2019, arXiv 1911.03090)."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.finetune.tunings._base import Base, freeze_encoder


class Tuning(Base):
    """Train the last `layers` layers, what comes after them, and the task head. What these layers share with lower
    ones is trained too."""

    def __init__(self, *, layers: Annotated[int, Field(ge=1, le=1000)]) -> None:
        self.layers = layers

    def check(self, config: EncoderConfig, where: str) -> None:
        """Raises UserError for more layers than there are."""
        if self.layers > config.depth:
            why = f"the model has {config.depth} layers"
            do = f"use last-1 to last-{config.depth}, or all"
            raise UserError(f"last-{self.layers} is more than the model", where=where, why=why, do=do)

    def apply(self, model: Model, generator: torch.Generator, *, new_pooler: bool = False) -> None:
        """Freeze the embeddings and the lower layers."""
        freeze_encoder(model, new_pooler)
        encoder = model.encoder
        above = [encoder.layers[group] for group in model.config.groups[-self.layers :]]
        for module in (*above, encoder.final_norm, encoder.pooler):
            if module is not None:
                _unfreeze(module)


def _unfreeze(module: nn.Module) -> None:
    """Train what a module computes with, also where another layer holds it."""
    for part in module.modules():
        part.requires_grad_(True)
        for owner in getattr(part, "_owner", ()):
            for name in ("weight", "bias"):
                tensor: Any = getattr(owner, name, None)
                # A layer with a bias of its own does not read its owner's.
                if tensor is not None and getattr(part, name, None) is tensor:
                    tensor.requires_grad_(True)

"""Static models, which are a word table: what training must keep, and the precision in which they are stored."""

from __future__ import annotations

import torch

from compress.encoder.modules.model import Model


def keep_silent(model: Model) -> None:
    """Rows of a static model that are zero stay zero in training: tokens that other programs do not read, [UNK] among
    them, add nothing to a vector. Other models stay as they are."""
    if not model.config.is_static:
        return
    weight = model.encoder.embeddings.word.weight
    silent = (weight.detach() == 0).all(1)
    weight.register_hook(lambda gradient: gradient.masked_fill(silent.to(gradient.device)[:, None], 0.0))


def finish_static(model: Model) -> Model:
    """A static model in fp16, as it is stored and measured; others as they are."""
    if not model.config.is_static:
        return model
    with torch.no_grad():
        return model.half()

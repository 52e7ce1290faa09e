"""Matches each student layer to the most similar teacher layer, measured on real input."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from compress.contracts import Batch, Needs
from compress.encoder.config.layer_maps import Pairs
from compress.encoder.modules.model import Model
from evaluation.representation.cka import LayerCKA

TOKENS = 8192  # 32 minibatches of CKA; more would cost passes of both models


def match_layers(student: Model, teacher: Model, batches: Iterable[Batch]) -> Pairs:
    """(student layer, teacher layer with the highest debiased linear CKA over real tokens), for every student layer."""
    cka, seen = LayerCKA(), 0
    was = student.training
    student.eval()
    with torch.inference_mode():
        for batch in batches:
            needs = Needs(hidden_states=True)
            ours, theirs = (model(batch, needs).hidden_states for model in (student, teacher))
            assert ours is not None
            assert theirs is not None
            cka.update(ours[1:], theirs[1:])
            seen += batch.tokens
            if seen >= TOKENS:
                break
    student.train(was)
    matrix = cka.matrix()
    return tuple((layer, int(row.argmax())) for layer, row in enumerate(matrix.filled(-2.0)))

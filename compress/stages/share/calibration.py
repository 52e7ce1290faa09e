"""Measures the similarity of a model's layers on real input."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from compress.contracts import Batch, Needs
from compress.encoder.infer.statistics import TOKENS
from compress.encoder.modules.model import Model
from compress.errors import UserError
from evaluation.representation.cka import LayerCKA


def similarity(model: Model, batches: Iterable[Batch]) -> np.ndarray:
    """(N, N) debiased linear CKA of the layers' outputs over real tokens, TOKENS of them.

    Raises UserError where a layer's output is constant.
    """
    cka, seen = LayerCKA(), 0
    with torch.inference_mode():
        for batch in batches:
            states = model(batch, Needs(hidden_states=True)).hidden_states
            assert states is not None
            cka.update(states[1:])
            seen += batch.tokens
            if seen >= TOKENS:
                break
    found = cka.matrix()
    if np.ma.is_masked(found):
        raise UserError("a layer's output is the same for every token", where="pattern", do="use another pattern")
    return np.asarray(found.data)

"""What conversion reads of a model on real input: how alike its layers are, what their matrices see, and how sensitive
the loss is to each weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compress.contracts import Batch, Needs, Objective
from compress.encoder.model import Model
from compress.encoder.statistics import TOKENS, collect
from compress.errors import UserError
from evaluation.representation.cka import LayerCKA

ROWS = 256
"""Rows whose gradients are squared: one backward pass each."""


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


def inputs(model: Model, batches: Iterable[Batch]) -> dict[nn.Module, Tensor]:
    """Linear layer → (in+1, in+1) mean of [x 1]ᵀ[x 1] over tokens of its input."""
    read = collect(model, batches)
    found, pre = dict(read.inputs), model.config.norm == "pre"
    layers: Any = model.encoder.layers
    for layer in layers:
        for part in (layer.attention.key, layer.attention.value):
            found[part] = found[layer.attention.query]
        found[layer.feed_forward.up] = read.outputs[layer.output_norm if pre else layer.attention_norm]
    return found


def fisher(model: Model, objective: Objective, rows: Iterable[Batch]) -> dict[nn.Parameter, Tensor]:
    """Parameter of a layer → mean square, fp64, of its gradient of the objective over ROWS batches of one row each.

    With the rows' own labels: the empirical diagonal Fisher information. Raises UserError when no row has one.
    """
    parameters = [p for p in model.encoder.layers.parameters() if p.requires_grad]
    sums = {p: torch.zeros(p.shape, dtype=torch.float64) for p in parameters}
    used = 0
    for batch in islice(_labelled(objective, rows), ROWS):
        loss = objective(model(batch, objective.student_needs), None, batch)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                sums[parameter] += gradient.double().square().cpu()
        used += 1
    if not used:
        raise UserError("no row has a label", where="start", why="Fisher information is of the loss on labels")
    return {parameter: total / used for parameter, total in sums.items()}


def _labelled(objective: Objective, rows: Iterable[Batch]) -> Iterator[Batch]:
    return (batch for batch in rows if objective.count(batch))

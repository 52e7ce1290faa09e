"""What the error of each matrix does to the model's answers: measured, one matrix at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Literal

import torch
from torch import Tensor, nn

from compress.contracts import Batch, Factors
from compress.encoder.model import Model
from compress.factorize.allocation import Candidate
from compress.factorize.conversion import Name, matrices, split
from compress.objectives.soft_targets import Objective as SoftTargets

BATCHES = 8
"""Batches of real input that answers are compared on."""


def weights(
    model: Model,
    found: Mapping[Name, Factors],
    known: Mapping[Name, Candidate],
    inputs: Mapping[nn.Module, Tensor],
    batches: Iterable[Batch],
    on: Literal["task", "vocabulary"],
    stop: Callable[[], None] = lambda: None,
) -> dict[Name, float]:
    """Matrix → KL of the answers in nats (of a score the squared difference) for each unit of its relative error.

    Each matrix alone is replaced by the product that holds half of its numbers. To first order the divergence grows
    with the squared error, which is what a relative error counts. The model is left as it was.
    """
    measure = SoftTargets(on=on, temperature=1.0)
    asked = measure.student_needs
    rows = list(islice(batches, BATCHES))
    was = model.training
    model.eval()
    try:
        with torch.inference_mode():
            before = [model(batch, asked) for batch in rows]
        found_weights = {}
        for name, part in matrices(model).items():
            stop()
            one = known[name]
            rank = max(1, min(one.most, one.whole // 2 // one.step))
            error = float(one.errors()[rank]) if one.most else 0.0
            if error <= 0:
                found_weights[name] = 0.0
                continue
            kept = [parameter.detach().clone() for parameter in part.parameters()]
            outer, inner, bias = split(part, found[name], rank, inputs)
            try:
                with torch.no_grad():
                    part.weight.copy_(outer @ inner)
                    if bias is not None:
                        part.bias.copy_(bias)
                with torch.inference_mode():
                    total = count = 0.0
                    for batch, old in zip(rows, before, strict=True):
                        terms = measure.count(batch)
                        total += float(measure(model(batch, asked), old, batch)) * terms
                        count += terms
            finally:
                with torch.no_grad():
                    for parameter, old_value in zip(part.parameters(), kept, strict=True):
                        parameter.copy_(old_value)
            found_weights[name] = max(0.0, total / max(1.0, count)) / error
    finally:
        model.train(was)
    return found_weights

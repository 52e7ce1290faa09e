"""Measures how much a lower rank of each matrix changes the model's outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compress.contracts import Batch, Factors
from compress.encoder.modules.model import Model
from compress.stages.factorize.allocation import Candidate
from compress.stages.factorize.conversion import Name, matrices, split
from compress.stages.shared.divergence import On, ReferenceAnswers

BATCHES = 4
"""Batches of real input that answers are compared on."""
SHARES = (0.5, 0.25, 0.08)
"""Of a matrix's numbers, at which it is looked at."""


def measure_sensitivity(
    model: Model,
    found: Mapping[Name, Factors],
    known: Mapping[Name, Candidate],
    inputs: Mapping[nn.Module, Tensor],
    batches: Iterable[Batch],
    on: On,
    stop: Callable[[], None] = lambda: None,
    told: Callable[[int], None] = lambda done: None,
) -> dict[Name, Candidate]:
    """The candidates with what each rank costs: KL of the answers in nats (of a score the squared difference,
    of vectors 1 minus the cosine).

    Each matrix alone is replaced by its product at the ranks that keep SHARES of its numbers; between them the cost is
    taken to grow with the squared error. The model is left as it was. told: of how many matrices are done.
    """
    scan = _Scan(model, list(islice(batches, BATCHES)), on)
    made = {}
    for done, (name, part) in enumerate(matrices(model).items()):
        told(done)
        one = known[name]
        ranks = sorted({max(1, min(one.max_rank, int(share * one.whole / one.step))) for share in SHARES}, reverse=True)
        costs = [0.0]
        errors = one.errors()
        for rank in ranks if one.max_rank else ():
            stop()
            costs.append(max(costs[-1], scan.cost(part, *split(part, found[name], rank, inputs))))
        # From the whole matrix, without an error, to rank 0, which is taken to be as bad as its error says.
        at = [0.0, *(float(errors[rank]) for rank in ranks)] if one.max_rank else [0.0]
        curve = np.interp(errors, at, costs)
        if len(at) > 1 and at[-1] > 0:
            curve = np.where(errors > at[-1], costs[-1] * errors / at[-1], curve)
        made[name] = Candidate(one.out, one.inputs, one.energies, np.maximum.accumulate(curve[::-1])[::-1])
    return made


class _Scan:
    """Compares the answers of a model that has one matrix replaced with those that it had."""

    def __init__(self, model: Model, batches: list[Batch], on: On) -> None:
        self.model = model.eval()
        self.reference = ReferenceAnswers(model, batches, on)

    def cost(self, part: Any, outer: Tensor, inner: Tensor, bias: Tensor | None) -> float:
        """Of this linear layer computing with these."""
        kept = [parameter.detach().clone() for parameter in part.parameters()]
        try:
            with torch.inference_mode():
                part.weight.copy_(outer @ inner)
                if bias is not None:
                    part.bias.copy_(bias)
            return self.reference.divergence(self.model)
        finally:
            with torch.no_grad():
                for parameter, value in zip(part.parameters(), kept, strict=True):
                    parameter.copy_(value)

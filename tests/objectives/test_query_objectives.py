"""Objectives of rerankers, beside their definitions written out pair by pair and query by query."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput
from compress.errors import UserError
from compress.objectives.listwise_kl import Objective as ListwiseKl
from compress.objectives.margin_mse import Objective as MarginMse

QUERIES, RELEVANT = [4, 4, 4, 9, 2, 2], [1.0, 0.0, 0.0, 1.0, 0.5, 0.0]


def made(queries: list[int] | None = QUERIES, labels: list[float] = RELEVANT) -> tuple[Tensor, Tensor, Batch]:
    """((B, 1) logits of student and teacher, their batch)"""
    count = len(labels)
    ours, theirs = torch.randn(2, count, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    at = torch.arange(count)
    extra = {} if queries is None else {"queries": torch.tensor(queries)}
    batch = Batch(at, at * 0, at * 0, torch.arange(count + 1), 1, at, labels=torch.tensor(labels)[:, None], extra=extra)
    return ours.requires_grad_(), theirs, batch


def value(objective: MarginMse | ListwiseKl, ours: Tensor, theirs: Tensor, batch: Batch) -> Tensor:
    hidden = torch.zeros(batch.tokens, 2)
    return objective(EncoderOutput(hidden, logits=ours), EncoderOutput(hidden, logits=theirs), batch)


@pytest.mark.parametrize("pairs", ["labelled", "all"])
def test_margins_of_documents_of_one_query(pairs):
    ours, theirs, batch = made()
    objective = MarginMse(pairs=pairs)
    wanted = [
        ((ours[i] - ours[j]) - (theirs[i] - theirs[j])).square()
        for i, j in itertools.combinations(range(6), 2)
        if QUERIES[i] == QUERIES[j] and (pairs == "all" or (RELEVANT[i] > 0) != (RELEVANT[j] > 0))
    ]
    assert objective.count(batch) == len(wanted)
    loss = value(objective, ours, theirs, batch)
    assert loss.item() == pytest.approx(torch.stack(wanted).mean().item(), rel=1e-5)
    loss.backward()
    assert ours.grad is not None
    assert ours.grad[3].item() == 0  # alone with its query


def test_shares_of_the_documents_of_a_query():
    ours, theirs, batch = made()
    objective = ListwiseKl(temperature=2.0)
    wanted = torch.zeros(())
    for rows in ([0, 1, 2], [4, 5]):
        p, q = ((x[rows, 0] / 2).log_softmax(0) for x in (ours, theirs))
        wanted = wanted + 4 * (q.exp() * (q - p)).sum() / 2
    assert objective.count(batch) == 2
    loss = value(objective, ours, theirs, batch)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert value(objective, ours + 7, theirs - 3, batch).item() == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize("objective", [MarginMse(), MarginMse(pairs="all"), ListwiseKl()])
def test_queries_with_one_document_have_no_effect_and_other_data_is_rejected(objective):
    ours, theirs, batch = made(queries=[0, 1, 2, 3, 4, 5])
    assert objective.count(batch) == 0
    assert value(objective, ours, theirs, batch).item() == 0
    with pytest.raises(UserError, match="no queries with documents"):
        objective.count(made(queries=None)[2])

"""What the objectives of rerankers share: the documents of a micro-batch, query by query."""

from __future__ import annotations

import torch
from torch import Tensor

from compress.contracts import QUERIES, Batch
from compress.errors import UserError


def number_queries(batch: Batch, kind: str) -> tuple[Tensor, Tensor]:
    """((B,) number of each row's query, from 0; (Q,) documents of each). Raises UserError for data of other tasks."""
    queries = batch.on_host.extra.get(QUERIES)
    if queries is None:
        raise UserError(
            "the data has no queries with documents", where=f"objective {kind}", do="use data and models for reranking"
        )
    _, *found = torch.unique(queries, return_inverse=True, return_counts=True)
    numbers, counts = (x.to(batch.input_ids.device, non_blocking=True) for x in found)  # a device would be waited for
    return numbers, counts


def sum_by_query(values: Tensor, numbers: Tensor, queries: int) -> Tensor:
    """(B,) values → (Q,) sums."""
    return values.new_zeros(queries).index_add(0, numbers, values)

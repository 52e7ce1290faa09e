"""What the objectives of rerankers share: the documents of a micro-batch, query by query."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from compress.contracts import QUERIES, Batch
from compress.errors import UserError


def number_on_host(batch: Batch, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """((B,) number of each row's query, from 0; (Q,) documents of each). Raises UserError for data of other tasks."""
    if QUERIES not in batch.extra:
        raise UserError(
            "the data has no queries with documents", where=f"objective {kind}", do="use data and models for reranking"
        )
    _, numbers, counts = np.unique(batch.on_host.values[QUERIES], return_inverse=True, return_counts=True)
    return numbers, counts


def number_queries(batch: Batch, kind: str) -> tuple[Tensor, Tensor]:
    """The same on the batch's device, once for all objectives."""
    if QUERIES not in batch.memo:
        found = (torch.from_numpy(x) for x in number_on_host(batch, kind))  # a device would be waited for
        batch.memo[QUERIES] = tuple(x.to(batch.input_ids.device, non_blocking=True) for x in found)
    return batch.memo[QUERIES]


def sum_by_query(values: Tensor, numbers: Tensor, queries: int) -> Tensor:
    """(B,) values → (Q,) sums."""
    return values.new_zeros(queries).index_add(0, numbers, values)

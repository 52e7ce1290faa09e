"""A batch padded to a fixed size, so that what is computed of it has the shapes of other batches."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from compress.contracts.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label of a row or token that has none."""


def pad_batch(batch: Batch, tokens: int, rows: int, longest: int) -> Batch:
    """A batch on the host with rows of padding behind its own: `rows` of `tokens` tokens in all. What reads single
    lengths reads `longest` for all of them.

    A row of padding has at least one token, since a sequence of none has no first token and no mean, and at most
    `longest`: `tokens` and `rows` have to leave room for that.
    """
    import numpy as np
    import torch
    import torch.nn.functional as F

    missing, added = tokens - batch.tokens, rows - batch.rows
    assert added <= missing <= added * longest
    lengths = np.full(added, missing // max(1, added))
    lengths[: missing - int(lengths.sum())] += 1
    ends = np.cumsum(lengths)
    places = np.arange(missing) - np.repeat(ends - lengths, lengths)
    per_token = batch.answered is not None

    def extend(x: Tensor | None, count: int, value: float) -> Tensor | None:
        return x if x is None or not count else F.pad(x, (*(0, 0) * (x.dim() - 1), 0, count), value=value)

    unlabelled = math.nan if batch.labels is not None and batch.labels.is_floating_point() else IGNORED
    changes = {
        "input_ids": extend(batch.input_ids, missing, 0),
        "segment_ids": extend(batch.segment_ids, missing, 0),
        "position_ids": torch.cat([batch.position_ids, torch.from_numpy(places)]),
        "cu_seqlens": torch.cat([batch.cu_seqlens, torch.from_numpy(batch.tokens + ends)]),
        "row_ids": extend(batch.row_ids, added, -1),
        "labels": extend(batch.labels, missing if per_token else added, unlabelled),
        "pair_labels": extend(batch.pair_labels, added, IGNORED),
        "special_mask": extend(batch.special_mask, missing, 1),
        "answered": extend(batch.answered, missing, 0),
        "real_tokens": torch.from_numpy(np.arange(tokens) < batch.tokens),
        "real_rows": torch.from_numpy(np.arange(rows) < batch.rows),
    }
    return dataclasses.replace(batch, **changes, max_length=longest)

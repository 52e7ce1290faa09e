"""Two scores a token, for where an answer starts and where it ends, as choices among the tokens of a row.

Questions and contexts compete with [CLS], which says that there is no answer (Devlin et al. 2019, sections 4.2, 4.3).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch
from compress.contracts.padding import IGNORED

BEYOND = -1e30  # the score of a place after the end of a row: no share of any softmax, and still finite


def is_spans(labels: Tensor | None) -> bool:
    """Whether labels are answer spans, (B, 2) positions, rather than classes, tags or numbers."""
    return labels is not None and labels.ndim == 2 and not labels.is_floating_point()


def has_answer(labels: Tensor) -> Tensor:
    """(B,) bool: rows whose answer is known."""
    return (labels != IGNORED).all(1)


def pad_scores(logits: Tensor, batch: Batch) -> Tensor:
    """(T, 2) → (B, 2, L): the scores of each row's tokens, BEYOND after its end."""
    rows = torch.arange(batch.rows, device=logits.device)
    rows = torch.repeat_interleave(rows, batch.cu_seqlens.diff(), output_size=batch.tokens)
    places = torch.arange(batch.tokens, device=logits.device) - batch.cu_seqlens[rows]
    out = logits.new_full((batch.rows, int(batch.max_length), 2), BEYOND)
    return out.index_put((rows, places), logits).transpose(1, 2)


def find_places(batch: Batch) -> Tensor:
    """(B, 1, L) bool: which places of `pad_scores` are tokens of their row."""
    places = torch.arange(int(batch.max_length), device=batch.cu_seqlens.device)
    return (places < batch.cu_seqlens.diff()[:, None])[:, None]


def cross_entropy(logits: Tensor, batch: Batch, labels: Tensor, smoothing: float) -> Tensor:
    """(B,) mean of the cross entropies of start and end; 0 where the answer is not known.

    smoothing: share of the probability spread evenly over the row's tokens.
    """
    log_p = F.log_softmax(pad_scores(logits, batch), dim=2)
    there = has_answer(labels)
    at = labels.clamp(min=0).unsqueeze(2)
    loss = -log_p.gather(2, at).squeeze(2)
    if smoothing:
        even = -torch.where(find_places(batch), log_p, 0.0).sum(2) / batch.cu_seqlens.diff()[:, None]
        loss = (1 - smoothing) * loss + smoothing * even
    return loss.mean(1) * there

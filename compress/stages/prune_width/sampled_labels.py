"""Answers as likely as a model has them: with them the mean square of a loss's slope is the Fisher information proper
(Kunstner et al., arXiv 1905.12558), which is the second derivative of the KL divergence from those answers; no label
is needed."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from compress.contracts import Batch
from compress.contracts.padding import IGNORED
from compress.objectives._common import is_score, is_several
from compress.objectives._spans import is_spans, pad_scores

EXACT = 8
"""Classes that are gone through one by one."""


def draw_labels(batch: Batch, logits: Tensor, generator: torch.Generator) -> Batch:
    """The batch with labels of its own kind, drawn as `logits` give them; also where a row has none.

    A score is drawn with the variance 1/2 that makes the squared error its negative log-likelihood.
    """
    labels, logits = batch.labels, logits.float().cpu()
    if labels is not None and is_score(labels):
        made = logits[:, 0] + 0.5**0.5 * torch.randn(len(logits), generator=generator)
    elif labels is not None and is_several(labels):
        made = (torch.rand(logits.shape, generator=generator) < logits.sigmoid()).float()
    elif is_spans(labels):
        made = _one_of(pad_scores(logits, batch.to("cpu")).flatten(0, 1), generator).view(-1, 2)
    else:
        made = _one_of(logits, generator)
        if batch.answered is not None:
            made = made.masked_fill(~batch.answered.cpu(), IGNORED)
    return dataclasses.replace(batch, labels=made.to(batch.input_ids.device), host=None)


def list_labelled_batches(
    batch: Batch, logits: Tensor, generator: torch.Generator, draws: int
) -> list[tuple[Batch, Tensor]]:
    """Batches with labels, and how likely each row's are (B,): every class where there are at most EXACT and a row has
    one, else so many draws, each as likely as the others."""
    labels, rows = batch.labels, batch.rows
    one = labels is None or (labels.dim() == 1 and not is_score(labels) and batch.answered is None)
    if one and logits.shape[1] <= EXACT:
        chances = logits.float().softmax(-1)
        made = [torch.full((rows,), c, dtype=torch.int64, device=logits.device) for c in range(logits.shape[1])]
        return [(dataclasses.replace(batch, labels=x, host=None), chances[:, c]) for c, x in enumerate(made)]
    even = torch.full((rows,), 1 / draws, device=logits.device)
    return [(draw_labels(batch, logits, generator), even) for _ in range(draws)]


def _one_of(logits: Tensor, generator: torch.Generator) -> Tensor:
    """(N, C) → (N,) int64."""
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]

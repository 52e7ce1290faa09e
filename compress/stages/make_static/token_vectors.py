"""The vectors of single tokens, as model2vec makes them: each alone through the parent, PCA, weights by frequency."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Batch, Needs, Teacher
from compress.data.batches.evaluation_batches import evaluation_batches, restore_order
from compress.data.batches.examples import Examples, examples_of
from compress.data.tables.table import UNLABELLED
from compress.data.text.tokenizer import EncodedRows, Tokenizer

TOKENS = 8192
"""Of one batch."""
_SMOOTHING = 0.5
"""Occurrences that are added to each token's: one that the texts do not hold is rare, not impossible."""


def wrap_tokens(tokenizer: Tokenizer, rows: int) -> Examples:
    """Each of the ids 0..rows-1 as a text of its own, between the tokens that the tokenizer puts around a text."""
    around = tokenizer.encode_batch([""], max_length=8).ids
    half = len(around) // 2
    made = np.empty((rows, len(around) + 1), dtype=np.int32)
    made[:, :half], made[:, half], made[:, half + 1 :] = around[:half], np.arange(rows), around[half:]
    offsets = np.arange(rows + 1, dtype=np.int64) * made.shape[1]
    ids = made.reshape(-1)
    part = EncodedRows(ids, offsets, np.zeros(len(ids), dtype=np.uint8), None, 0)
    labels = np.full(rows, UNLABELLED, dtype=np.int64)
    return examples_of(tokenizer, [part], labels, np.arange(1, rows + 1, dtype=np.int64), made.shape[1] + 1)


def embed_tokens(
    model: Teacher, examples: Examples, device: str, stop: Callable[[], None], told: Callable[[int], None]
) -> Tensor:
    """(V, D) fp32 vectors of `wrap_tokens`. stop: may raise Stopped.  told: of how many tokens are done."""
    found, done = [], 0
    for batch in evaluation_batches(examples, TOKENS):
        stop()
        logits = model(batch.to(device), Needs(logits=True)).logits
        assert logits is not None
        found.append((batch.row_ids.numpy(), logits.float().cpu().numpy()))
        done += batch.rows
        told(done)
    return torch.from_numpy(restore_order(examples, found))


def count_tokens(batches: Iterable[Batch], rows: int) -> Tensor:
    """(rows,) int64: how often each id comes in the batches."""
    counts = torch.zeros(rows, dtype=torch.int64)
    for batch in batches:
        counts += torch.bincount(batch.input_ids.cpu(), minlength=rows)
    return counts


def compute_sif_weights(counts: Tensor, coefficient: float) -> Tensor:
    """(V,) int64 occurrences → (V,) fp32 weights a / (a + p), p the share of all tokens (Arora et al. 2017)."""
    smoothed = counts.double() + _SMOOTHING
    return (coefficient / (coefficient + smoothed / smoothed.sum())).float()


def fit_pca(vectors: Tensor, dimensions: int) -> tuple[Tensor, Tensor]:
    """(N, D) vectors → their mean (D,) and (D, dimensions) leading principal directions, fp32. The sign of a direction
    is that of its largest entry, so that equal vectors give equal directions."""
    wide = vectors.double()
    mean = wide.mean(0)
    centred = wide - mean
    _, found = torch.linalg.eigh(centred.T @ centred)
    kept = found.flip(1)[:, :dimensions]
    largest = kept.gather(0, kept.abs().argmax(0, keepdim=True))
    return mean.float(), (kept * largest.sign()).float()


def build_table(vectors: Tensor, weights: Tensor | None, silent: Tensor, dimensions: int) -> Tensor:
    """(V, D) token vectors → (V, dimensions): centred principal components times weights (V,), rows of `silent` ids
    zero, and a mean length of 1. All D of them stay on the parent's axes: rotated, no vector would be near the one of
    the parent, and an index could not hold both."""
    heard = torch.ones(len(vectors), dtype=torch.bool)
    heard[silent] = False
    mean, directions = fit_pca(vectors[heard], dimensions)
    table = vectors - mean
    if dimensions < vectors.shape[1]:
        table = table @ directions
    if weights is not None:
        table *= weights[:, None]
    table[silent] = 0.0
    return table / table[heard].norm(dim=1).mean().clamp(min=1e-12)

"""A text that is longer than a model reads, in chunks that overlap, and the answers to the chunks pooled into one.

Each chunk is trained with the label of its whole text, and the logits of a text's chunks are pooled when it is answered
(Pappagari et al. 2019, 1910.10781, without their second network on top).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from compress.data.batches.examples import Examples, examples_of
from compress.data.text.passages import overlap
from compress.data.text.tokenizer import EncodedRows, Tokenizer, check_length
from compress.errors import format_count

LONGEST = 1_000_000
"""Characters of one text; what is beyond is not read: tokenizers take minutes and gigabytes for megabytes."""


def encode_chunks(
    tokenizer: Tokenizer,
    texts: Iterable[list[str]],
    labels: np.ndarray,
    numbers: np.ndarray,
    *,
    max_length: int,
    stride: int | None = None,
) -> Examples:
    """Texts, slice by slice, each in as many rows of [CLS] … [SEP] as it needs, which share its label and its number.

    labels (N,), numbers (N,).  stride: tokens that neighbouring chunks share; None: a third of `max_length`. Raises
    UserError when it does not fit the length, or there is no row.
    """
    check_length(max_length)
    shared = overlap(stride, max_length)
    room, parts, counts = max_length - 2, [], []
    for part in texts:
        over = sum(len(text) > LONGEST for text in part)
        plain = tokenizer.encode_plain([text[:LONGEST] for text in part], words=False)
        sizes = np.diff(plain.offsets)
        wanted = 1 + np.maximum(0, -(-(sizes - room) // (room - shared)))
        counts.append(wanted)
        inner = np.arange(int(wanted.sum())) - np.repeat(np.cumsum(wanted) - wanted, wanted)
        starts = np.repeat(plain.offsets[:-1], wanted) + inner * (room - shared)
        ends = np.minimum(starts + room, np.repeat(plain.offsets[1:], wanted))
        parts.append(frame_rows(tokenizer, plain.ids, starts, ends, over))
    chunks = np.concatenate([np.zeros(0, np.int64), *counts])
    several = chunks > 1
    notes = []
    if several.any():
        notes.append(
            f"{format_count(int(several.sum()), 'text')} of {len(chunks):,} longer than {max_length} tokens, split "
            "into "
            f"{int(chunks[several].sum()):,} chunks that overlap by {shared} tokens"
        )
    repeated = np.repeat(numbers, chunks)
    return examples_of(tokenizer, parts, np.repeat(labels, chunks, 0), repeated, max_length, notes=tuple(notes))


def frame_rows(tokenizer: Tokenizer, ids: np.ndarray, starts: np.ndarray, ends: np.ndarray, cut: int) -> EncodedRows:
    """[CLS] ids[start:end] [SEP], row after row."""
    lengths = ends - starts + 2
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    out = np.full(int(offsets[-1]), tokenizer.sep_id, dtype=np.int32)
    out[offsets[:-1]] = tokenizer.cls_id
    inner = np.arange(len(out)) - np.repeat(offsets[:-1], lengths)
    text = (inner > 0) & (inner < np.repeat(lengths, lengths) - 1)
    out[text] = ids[(np.repeat(starts, lengths) + inner - 1)[text]]
    return EncodedRows(out, offsets, np.zeros(len(out), np.uint8), None, cut)


def find_texts(examples: Examples) -> np.ndarray:
    """(W,) the text of each chunk, counted from 0."""
    return np.cumsum(_is_first(examples)) - 1


def pool(logits: np.ndarray, examples: Examples, how: str) -> np.ndarray:
    """(W, C) logits of chunks → (N, C) of their texts, by the mean or the largest of each logit."""
    first = np.flatnonzero(_is_first(examples))
    if len(first) == len(logits):
        return logits
    if how == "max":
        return np.maximum.reduceat(logits, first, axis=0)
    counts = np.diff(np.append(first, len(logits)))
    return np.add.reduceat(logits, first, axis=0) / counts[:, None].astype(logits.dtype)


def _is_first(examples: Examples) -> np.ndarray:
    """(W,) bool: whether a chunk is the first of its text."""
    return np.r_[True, examples.numbers[1:] != examples.numbers[:-1]]

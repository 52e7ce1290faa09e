"""Counts token usage, and measures the effect of a smaller vocabulary on held-out text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from compress.data.reading.corpus import Corpus
from compress.data.tables.table import Rows
from compress.data.task import Task
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import sentences, tokenize_documents
from compress.errors import UserError

HELD_OUT = 2000
"""Held-out documents of a corpus that are read."""


@dataclass(frozen=True)
class TokenizedTexts:
    """N texts as T pieces. ids: (T,) int.  offsets: (N+1,) int64.  special: (T,) bool.  cut: (N,) bool, texts that may
    have been longer."""

    ids: np.ndarray
    offsets: np.ndarray
    special: np.ndarray
    cut: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def counts(self, rows: int) -> np.ndarray:
        """(rows,) int64: how often each piece stands in the texts, special tokens left out."""
        return np.bincount(self.ids[~self.special], minlength=rows)

    def count_each(self, pieces: np.ndarray) -> np.ndarray:
        """(N,) how many of the `pieces`, (T,) bool, each text has."""
        return np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(pieces)])[self.offsets])


def read_rows(task: Task, tokenizer: Tokenizer, rows: Rows, length: int) -> TokenizedTexts:
    """Labelled rows, as a model of the task reads them, cut to `length` pieces. A long one may be several texts."""
    made = task.encode(tokenizer, rows, max_length=length)
    return TokenizedTexts(made.ids, made.offsets, made.special, made.lengths >= length)


def read_held_out(corpus: Corpus, tokenizer: Tokenizer) -> TokenizedTexts:
    """Sentences of the first held-out documents of a corpus. Raises UserError where there are none."""
    texts = [one for text in islice(corpus.texts("validation"), HELD_OUT) for one in sentences(text)]
    if not texts:
        raise UserError("the corpus has no held-out text", where=corpus.name)
    made = tokenizer.encode_plain(texts, words=False)
    return TokenizedTexts(made.ids, made.offsets, tokenizer.special_mask(made.ids), np.zeros(len(texts), bool))


def count_corpus(corpus: Corpus, tokenizer: Tokenizer, rows: int, stop: Callable[[], None]) -> np.ndarray:
    """(rows,) int64: how often each piece stands in the training text."""
    found = np.zeros(rows, dtype=np.int64)
    for part in tokenize_documents(corpus.texts("train"), tokenizer):
        stop()
        ids = part.ids[~tokenizer.special_mask(part.ids)]
        found += np.bincount(ids, minlength=rows)
    return found


@dataclass(frozen=True)
class Loss:
    """What held-out texts lose. texts: how many.  coverage: share of their known pieces that are kept.  changed: share
    of texts that lost a piece, and are cut otherwise now.

    Before and after: unknown: unknown pieces.  affected: texts with one.  length: mean pieces of a text.
    """

    texts: int
    coverage: float
    changed: float
    unknown: tuple[int, int]
    affected: tuple[int, int]
    length: tuple[float, float]


def loss(before: TokenizedTexts, after: TokenizedTexts, new_ids: np.ndarray, unknown: int | None, where: str) -> Loss:
    """before, after: the same texts, as both tokenizers read them.  new_ids: (V,) -1 of pieces that went.  unknown: old
    id of the unknown piece.

    Raises UserError where a text whose pieces all stayed is cut otherwise: the tokenizer does more than it says.
    """
    known = ~before.special if unknown is None else ~before.special & (before.ids != unknown)
    lost = new_ids[before.ids] < 0
    changed = before.count_each(lost) > 0
    _check_same(before, after, changed | (before.count_each(~before.special & ~known) > 0), new_ids, where)
    return Loss(
        texts=len(before),
        coverage=1 - float((lost & known).sum()) / max(1, int(known.sum())),
        changed=float(changed.mean()),
        unknown=(_unknown(before, unknown), _unknown(after, _new(new_ids, unknown))),
        affected=(_affected(before, unknown), _affected(after, _new(new_ids, unknown))),
        length=(_length(before), _length(after)),
    )


def _new(new_ids: np.ndarray, unknown: int | None) -> int | None:
    return None if unknown is None else int(new_ids[unknown])


def _unknown(reading: TokenizedTexts, unknown: int | None) -> int:
    return int((reading.ids == unknown).sum())


def _affected(reading: TokenizedTexts, unknown: int | None) -> int:
    return int((reading.count_each(reading.ids == unknown) > 0).sum())


def _length(reading: TokenizedTexts) -> float:
    return float((~reading.special).sum()) / len(reading)


def _check_same(
    before: TokenizedTexts, after: TokenizedTexts, others: np.ndarray, new_ids: np.ndarray, where: str
) -> None:
    """Texts of which every piece stayed are cut as before. others: (N,) bool, those that are not looked at."""
    if len(after) != len(before):  # long texts in windows, whose number changes
        return
    for index in np.flatnonzero(~(others | before.cut | after.cut)):
        old, new = (r.ids[r.offsets[index] : r.offsets[index + 1]] for r in (before, after))
        if not np.array_equal(new_ids[old], new):
            raise UserError(
                "the tokenizer cannot be rebuilt",
                where=where,
                why=f"text {int(index) + 1} of the held-out ones contains only kept tokens but would be tokenized "
                f"differently",
            )

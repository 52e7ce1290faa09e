"""Tokens of running text, each word of it tokenized once: in a large corpus nearly every word has been seen before.

Only for tokenizers that cut at every space before they do anything else that reads across it (BERT's): there the pieces
of a sentence are the pieces of what stands between its spaces, one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain

import numpy as np

from compress.data.batches.ragged import gather
from compress.data.text.tokenizer import Tokenizer

MOST = 1 << 20
"""Words that are remembered; then it begins anew."""
MOST_CHARACTERS = 1 << 25
"""Of these words."""
LONG = 9  # characters of a word with its space, on average; Chinese has no spaces, and a sentence hardly comes again


class WordCache:
    """Encodes sentences as `Tokenizer.encode_plain` does, with the places where words start. most: words that are
    remembered; None: MOST."""

    def __init__(self, tokenizer: Tokenizer, *, most: int | None = None) -> None:
        self._tokenizer, self._most = tokenizer, most
        self.usable = cuts_at_spaces(tokenizer)
        self._forget()

    def encode(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """(ids (T,) int32, word_starts (T,) bool, tokens of each sentence); None where this way does not pay."""
        if not self.usable or not sentences:
            return None
        split = [sentence.split(" ") for sentence in sentences]
        counts = np.fromiter(map(len, split), np.int64, len(split))
        total = int(counts.sum())
        if sum(map(len, sentences)) > LONG * total:
            return None
        if len(self._numbers) > (self._most or MOST) or self._characters > MOST_CHARACTERS:
            self._forget()
        numbers = np.fromiter(map(self._numbers.__getitem__, chain.from_iterable(split)), np.int64, total)
        self._learn()
        places, ends = gather(self._offsets, numbers)
        return self._ids[places], self._starts[places], np.diff(ends[np.concatenate([[0], np.cumsum(counts)])])

    def _forget(self) -> None:
        self._numbers, self._characters = _Numbers(), 0
        self._ids, self._starts = np.zeros(0, np.int32), np.zeros(0, dtype=bool)
        self._offsets = np.zeros(1, np.int64)

    def _learn(self) -> None:
        """Tokenize the words that were new."""
        if not self._numbers.new:
            return
        self._characters += sum(map(len, self._numbers.new))
        made = self._tokenizer.encode_plain(self._numbers.new, words=True)
        assert made.words is not None
        starts = np.ones(len(made.ids), dtype=bool)
        starts[1:] = (made.words[1:] != made.words[:-1]) | (made.words[1:] < 0)
        first = made.offsets[:-1]
        starts[first[first < len(starts)]] = True
        self._ids = np.concatenate([self._ids, made.ids])
        self._starts = np.concatenate([self._starts, starts])
        self._offsets = np.concatenate([self._offsets, self._offsets[-1] + made.offsets[1:]])
        self._numbers.new = []


class _Numbers(dict[str, int]):
    """Word → its number, given at the first look. new: words that nobody has tokenized yet."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


def cuts_at_spaces(tokenizer: Tokenizer) -> bool:
    """Whether it is WordPiece behind BERT's own way of cutting, without tokens that reach across a space."""
    told = json.loads(tokenizer.files()["tokenizer.json"])
    kinds = [(told.get(part) or {}).get("type") for part in ("model", "pre_tokenizer", "normalizer")]
    reaching = (t["lstrip"] or t["rstrip"] or t["single_word"] or " " in t["content"] for t in told["added_tokens"])
    return kinds[:2] == ["WordPiece", "BertPreTokenizer"] and kinds[2] in ("BertNormalizer", None) and not any(reaching)

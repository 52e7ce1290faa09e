"""Running text → sentences → token ids → blocks: what masked language modelling and sentence-pair objectives read."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from compress.data.reading.corpus import Corpus
from compress.data.text.segmentation import Segmenter, word_starts
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.data.text.word_cache import WordCache
from compress.errors import UserError

# The end of a sentence: a mark and white space after it (no space in Chinese), or the end of a line.
_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])|\s*\n\s*")
AT_ONCE = 256  # documents tokenized together
READ = 1 << 22  # numbers read at once of what may be on the disk
DOCUMENTS = 4096  # cut into blocks at once
LONGEST = 5000  # characters of a sentence


def sentences(text: str) -> list[str]:
    """The sentences of a text: parted after . ! ? … and at line ends; what marks them stays.

    What goes on for more than LONGEST characters is cut at a space: it would be cut into blocks anyway, and tokenizers
    take minutes and gigabytes for one text of megabytes.
    """
    parts = (piece.strip() for piece in _SENTENCE.split(text))
    return [piece for part in parts if part for piece in _pieces(part)]


def _pieces(part: str) -> Iterator[str]:
    while len(part) > LONGEST:
        space = part.rfind(" ", 1, LONGEST)
        place = space if space > 0 else LONGEST
        yield part[:place]
        part = part[place:].lstrip()
    yield part


class Readable(Protocol):
    """One dimension of numbers, read by slices and by arrays of places."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: Any, /) -> Any: ...


@dataclass(frozen=True)
class Tokens:
    """A corpus as token ids without special tokens. T tokens in S sentences in N documents.

    ids: (T,) int32.  word_starts: (T,) bool.  sentences: (S+1,) int64 offsets into ids.  documents: (N+1,) int64
    offsets into sentences. Arrays, or on the disk what is read like one, a slice or some places at a time.
    """

    ids: Readable
    word_starts: Readable
    sentences: Readable
    documents: Readable
    fingerprint: str
    stored: bool = False

    def counts(self, vocabulary_size: int) -> np.ndarray:
        """(V,) int64: how often each token occurs."""
        found = np.zeros(vocabulary_size, dtype=np.int64)
        for start in range(0, len(self.ids), READ):
            found += np.bincount(self.ids[start : start + READ], minlength=vocabulary_size)
        return found


@dataclass(frozen=True)
class Part:
    """Some documents in a row, tokenized. sentences: tokens of each; documents: sentences of each; none is empty."""

    ids: np.ndarray
    word_starts: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray


def tokenize_documents(
    texts: Iterable[str], tokenizer: Tokenizer, segmenter: Segmenter | None = None
) -> Iterator[Part]:
    """Documents, AT_ONCE by AT_ONCE, sentence by sentence. Words are the segmenter's, else the tokenizer's."""
    texts = iter(texts)
    cache = WordCache(tokenizer) if segmenter is None else None
    while batch := [sentences(text) for text in islice(texts, AT_ONCE)]:
        flat = [sentence for document in batch for sentence in document]
        ids, word, size = (cache and cache.encode(flat)) or _encoded(flat, tokenizer, segmenter)
        ends = np.cumsum([len(document) for document in batch])
        kept = np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(size > 0)])[np.append(0, ends)])
        yield Part(ids, word, size[size > 0], kept[kept > 0])


def _encoded(
    flat: list[str], tokenizer: Tokenizer, segmenter: Segmenter | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids, word_starts, tokens of each sentence)."""
    made = tokenizer.encode_plain(flat, words=True, spans=segmenter is not None)
    assert made.words is not None
    word = np.ones(len(made.ids), dtype=bool)
    if segmenter is None:
        word[1:] = (made.words[1:] != made.words[:-1]) | (made.words[1:] < 0)
    else:
        assert made.spans is not None
        word = word_starts(flat, made.offsets, made.spans, segmenter)
    inner = made.offsets[:-1]
    word[inner[inner < len(word)]] = True
    return made.ids, word, np.diff(made.offsets)


def no_tokens(corpus: Corpus, split: str) -> UserError:
    return UserError("the corpus has no tokens", where=f"{corpus.name}: {split}")


def tokens_mark(corpus: Corpus, tokenizer: Tokenizer, split: str) -> Any:
    """The start of a fingerprint of tokens."""
    return hashlib.sha256(json.dumps(["tokens-1", corpus.fingerprint, split, tokenizer.fingerprint]).encode())


def tokenize(corpus: Corpus, tokenizer: Tokenizer, split: str = "train", segmenter: Segmenter | None = None) -> Tokens:
    """One split as token ids in memory.

    Raises UserError when nothing is left, and for what the segmenter does wrong.
    """
    parts = list(tokenize_documents(corpus.texts(split), tokenizer, segmenter))
    if not any(len(part.documents) for part in parts):
        raise no_tokens(corpus, split)
    start = [np.zeros(1, np.int64)]
    offsets = np.cumsum(np.concatenate(start + [part.sentences for part in parts]))
    documents = np.cumsum(np.concatenate(start + [part.documents for part in parts]))
    mark = tokens_mark(corpus, tokenizer, split)
    words = np.concatenate([part.word_starts for part in parts])
    if segmenter is not None:  # a function may change under its name: what it found counts
        mark.update(segmenter.fingerprint.encode() + np.packbits(words).tobytes())
    return Tokens(np.concatenate([part.ids for part in parts]), words, offsets, documents, mark.hexdigest())


# --- blocks -----------------------------------------------------------------------------------------------------


def with_separators(tokens: Tokens, separator: int) -> Tokens:
    """The corpus with a separator at the end of each document but the last, as part of its last sentence.

    For blocks that cross documents (RoBERTa, arXiv 1907.11692, FULL-SENTENCES).
    """
    if tokens.stored:
        raise UserError(
            "a corpus on disk cannot have blocks across documents", do="set across_documents: false, or stream: false"
        )
    after = tokens.sentences[tokens.documents[1:-1]]  # the token before which each goes
    ids = np.insert(tokens.ids[:], after, separator).astype(np.int32)
    starts = np.insert(tokens.word_starts[:], after, True)
    ends = tokens.sentences[:] + np.searchsorted(after, tokens.sentences[:], side="right")
    return Tokens(ids, starts, ends, tokens.documents, tokens.fingerprint)


@dataclass(frozen=True)
class Blocks:
    """Stretches of a corpus, R in all: block r is ids[starts[r]:ends[r]], of document documents[r] (the first one)."""

    starts: np.ndarray
    ends: np.ndarray
    documents: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)


def pack_blocks(tokens: Tokens, block_length: int, special: int, *, across_documents: bool = False) -> Blocks:
    """Whole sentences, one after the other, up to `block_length` tokens with `special` of them reserved.

    Every token lands in exactly one block. A sentence that is longer than a block is cut. Blocks end with their
    document unless `across_documents`: computing on real tokens only, a short block costs no padding.
    """
    check_length(block_length)
    room = block_length - special
    if room < 1:
        raise UserError(f"blocks of {block_length} tokens have no room for text", do=f"give {special + 2} or more")
    # 8 and 4 bytes a block, of which there may be many millions: each begins where the one before it ends.
    borders, owners = array("q", [0]), array("i")

    def add(start: int, end: int, owner: int) -> None:
        assert start == borders[-1]
        borders.append(end)
        owners.append(owner)

    start = end = owner = 0
    for document, bounds in _bounds(tokens):
        for stop in bounds:
            if stop - start > room and end > start:
                add(start, end, owner)
                start = end
            if start == end:
                owner = document
            while stop - start > room:  # the sentence alone is too long
                add(start, start + room, owner)
                start += room
            end = stop
        if not across_documents and end > start:
            add(start, end, owner)
            start = end
    if end > start:
        add(start, end, owner)
    places = np.frombuffer(borders, dtype=np.int64)
    return Blocks(places[:-1], places[1:], np.frombuffer(owners, dtype=np.int32))


def _bounds(tokens: Tokens) -> Iterator[tuple[int, list[int]]]:
    """Each document with the ends of its sentences, some thousands at a time."""
    count = len(tokens.documents) - 1
    for first in range(0, count, DOCUMENTS):
        limits = tokens.documents[first : first + DOCUMENTS + 1].tolist()
        bounds = tokens.sentences[limits[0] + 1 : limits[-1] + 1].tolist()
        for i in range(len(limits) - 1):
            yield first + i, bounds[limits[i] - limits[0] : limits[i + 1] - limits[0]]

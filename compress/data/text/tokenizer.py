"""Texts ↔ token ids: a wrapper over `tokenizers` that trains, reads and writes what `AutoTokenizer` reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from compress.data.text import tokenizer_files, tokenizer_limits, tokenizer_native
from compress.errors import UserError, printable

MAX_LENGTH = 1 << 20  # tokens; nothing of the BERT family comes near
SHORTEST = 3  # [CLS], one token, [SEP]
CHARACTERS_PER_TOKEN = 64  # of a long text that are tokenized first; English has about 5
_CERTAIN = 32  # times the limit in tokens: more than enough where words are not told apart
AT_ONCE = 1024


@dataclass(frozen=True)
class EncodedRows:
    """Ragged token ids of N rows, T tokens in all.

    ids: (T,) int32.  offsets: (N+1,) int64.  segments: (T,) uint8.  words: (T,) int32 or None: the number of the word
    that the piece belongs to, -1 on special tokens.  cut: rows that were longer than allowed.  spans: (T, 2) int32 or
    None: the characters of the row's text that the piece stands for, from and up to.  texts: with the spans, (T,) int8:
    which text of the row that is, 0 or 1; -1 of the special tokens around them.
    """

    ids: np.ndarray
    offsets: np.ndarray
    segments: np.ndarray
    words: np.ndarray | None
    cut: int
    spans: np.ndarray | None = None
    texts: np.ndarray | None = None


class Tokenizer:
    """A tokenizer with the special tokens that BERT-family encoders need.

    files: file name → content, as they stand in a model folder.  where: what errors call it.
    """

    def __init__(self, files: Mapping[str, bytes], *, where: str = "tokenizer") -> None:
        self.where = where
        self._files = tokenizer_files.normal(dict(files), where)
        self._settings = tokenizer_files.settings(self._files, where)
        self._side = tokenizer_files.truncation_side(self._settings, where)
        self._backend = tokenizer_native.build(self._files["tokenizer.json"], where)
        self._limited: dict[tuple[Any, ...], tokenizers.Tokenizer] = {}
        self.vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        _check_ids(self.vocabulary, where)
        self.specials = tokenizer_files.special_tokens(self._settings, self.vocabulary) | self._template()

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        kind: str = "wordpiece",
        vocabulary_size: int = 30_522,
        lowercase: bool = True,
        min_frequency: int = 2,
        tokenize_chinese_chars: bool = True,
    ) -> Tokenizer:
        """Learn a vocabulary: "wordpiece" as BERT's, "bpe" on bytes, or "unigram". [PAD] is 0.

        The same texts give the same WordPiece and BPE vocabulary to the byte. Unigram's trainer adds floats in the
        order of a hash table: its pieces and ids repeat, its scores only to about 1e-3.
        tokenize_chinese_chars: of WordPiece, every ideograph is a word and a piece of its own. Raises UserError.
        """
        from compress.data.text import tokenizer_training

        made = tokenizer_training.train(texts, kind, vocabulary_size, lowercase, min_frequency, tokenize_chinese_chars)
        return cls(made)

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """From a folder's files, as transformers reads them; of a folder that we wrote, its tokenizer.json. Raises
        UserError."""
        return cls(tokenizer_files.read_settled(Path(folder)), where=str(folder))

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, where: str = "tokenizer") -> Tokenizer:
        """From file contents, e.g. those a model folder was loaded with."""
        return cls(files, where=where)

    def files(self) -> dict[str, bytes]:
        """name → content of what belongs into a model folder: no truncation, no padding."""
        return dict(self._files)

    # --- what it knows --------------------------------------------------------------------------------------

    @cached_property
    def vocabulary_size(self) -> int:
        """One more than the largest id: the rows an embedding table needs at least."""
        return max(self.vocabulary.values()) + 1

    @cached_property
    def vocabulary_sha(self) -> str:
        """sha256 of all (id, token): two models whose vocabulary logits may be compared have the same."""
        items = sorted((i, token) for token, i in self.vocabulary.items())
        return hashlib.sha256(json.dumps(items, ensure_ascii=True).encode()).hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the whole pipeline: equal exactly when every text is encoded alike."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    @property
    def pad_id(self) -> int:
        return self._special("pad")

    @property
    def unk_id(self) -> int:
        return self._special("unk")

    @property
    def cls_id(self) -> int:
        return self._special("cls")

    @property
    def sep_id(self) -> int:
        return self._special("sep")

    @property
    def mask_id(self) -> int:
        return self._special("mask")

    def _template(self) -> dict[str, int]:
        """The tokens that the tokenizer itself puts before and after a text, whatever they are called."""
        around = _guarded(self._backend, [""], True, False, self.where)[0].ids
        outside = max((i for one in (around, self._around_pair) for i in one), default=0)
        if outside >= self.vocabulary_size:
            why = f"the vocabulary has ids up to {self.vocabulary_size - 1:,}"
            raise UserError(f"the tokenizer adds a special token with the id {outside:,}", where=self.where, why=why)
        return {"cls": around[0], "sep": around[-1]} if len(around) > 1 else {}

    @cached_property
    def between(self) -> int:
        """How many separators part the two texts of a pair: one in BERT, two in RoBERTa."""
        return max(1, len(self._around_pair) - 2)

    @cached_property
    def _around_pair(self) -> list[int]:
        """The ids that the tokenizer itself puts around two texts."""
        return _guarded(self._backend, [("", "")], True, False, self.where)[0].ids

    def _special(self, role: str) -> int:
        if role not in self.specials:
            raise UserError(f"the tokenizer has no {role} token", where=self.where, do=f"known: {list(self.specials)}")
        return self.specials[role]

    @cached_property
    def special_ids(self) -> np.ndarray:
        """Ids of tokens that are structure and not text ([UNK] stands for text)."""
        return np.array(sorted({i for role, i in self.specials.items() if role != "unk"}), dtype=np.int64)

    def special_mask(self, ids: np.ndarray) -> np.ndarray:
        """(T,) bool: where a token is structure."""
        return self._structure[ids]

    @cached_property
    def _structure(self) -> np.ndarray:
        """(V,) bool: which ids are structure."""
        table = np.zeros(self.vocabulary_size, dtype=bool)
        table[self.special_ids] = True
        return table

    def check_fits(self, embedding_rows: int, *, where: str | None = None) -> None:
        """Raise UserError when the model has fewer embeddings than the vocabulary has ids."""
        if self.vocabulary_size > embedding_rows:
            raise UserError(
                "the tokenizer does not match the model",
                where=where or self.where,
                why=f"ids go to {self.vocabulary_size - 1:,}, the model has {embedding_rows:,} embeddings",
                do="use the tokenizer that belongs to this model",
            )

    # --- encoding -------------------------------------------------------------------------------------------

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int,
        words: bool = False,
        spans: bool = False,
    ) -> EncodedRows:
        """Texts, or pairs of texts, with special tokens, cut to `max_length` (the longer text of a pair first), at the
        side that the tokenizer's configuration names.

        A text of more than 64 characters a token is shortened before tokenizing, to a part that gives the same tokens.
        Raises UserError for lengths below 3, and for texts the tokenizer breaks on.
        """
        check_length(max_length)
        rows: list[Any] = [self._shortened(text, max_length) for text in texts]
        if pairs is not None:
            rows = list(zip(rows, (self._shortened(text, max_length) for text in pairs), strict=True))
        backend = self._limit(max_length, strategy="longest_first", direction=self._side)
        return self._encode(backend, rows, words, pairs is not None, max_length, spans)

    def _shortened(self, text: str, limit: int) -> str:
        """The part of a long text from which its first `limit` tokens come, or its last ones where the other side is
        cut: 20 MB of text took 88 s to become 128 tokens.

        Tokens depend on their word alone, so all are right but those of the word that the cut goes through. A text
        without enough words, such as one of blanks, is read four times as far each time.
        """
        kept = limit * CHARACTERS_PER_TOKEN
        while kept < len(text):
            part = text[-kept:] if self.cuts_left else text[:kept]
            words = _guarded(self._backend, [part], False, True, self.where)[0].word_ids
            broken = words[0 if self.cuts_left else -1] if words else None
            if sum(word != broken for word in words) > limit or len(words) > _CERTAIN * limit:
                return part
            kept *= 4
        return text

    @property
    def cuts_left(self) -> bool:
        """Whether a text that is too long loses its beginning, and not its end."""
        return self._side == "left"

    def encode_plain(self, texts: Sequence[str], *, words: bool = True, spans: bool = False) -> EncodedRows:
        """Texts without special tokens and without a limit: for corpora, whose lines are short and cut later."""
        return self._encode(self._backend, list(texts), words, False, None, spans)

    def encode_windows(
        self, firsts: Sequence[str], seconds: Sequence[str] | None = None, *, max_length: int, stride: int
    ) -> Iterator[tuple[int, tokenizers.Encoding]]:
        """(row, window) of texts, or of pairs of them: where one is too long, its last text comes in several windows.

        stride: tokens of that text that neighbouring windows share; the first of two must leave room for more than that
        many. Raises UserError for texts the tokenizer breaks on.
        """
        backend = self._limit(max_length, stride=stride, strategy="only_second" if seconds else "only_first")
        for start in range(0, len(firsts), AT_ONCE):
            part: list[Any] = list(firsts[start : start + AT_ONCE])
            if seconds is not None:
                part = list(zip(part, seconds[start : start + AT_ONCE], strict=True))
            for row, one in enumerate(_guarded(backend, part, True, True, self.where), start):
                yield row, one
                yield from ((row, more) for more in one.overflowing)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def _limit(self, max_length: int, **how: Any) -> tokenizers.Tokenizer:
        """One that truncates. It is kept: to build one takes longer than a model takes for a text."""
        key = (max_length, *how.values())
        if key not in self._limited:
            limited = tokenizer_native.build(self._files["tokenizer.json"], self.where)
            limited.enable_truncation(max_length, **how)
            self._limited[key] = limited
        return self._limited[key]

    def _encode(
        self,
        backend: tokenizers.Tokenizer,
        rows: list[Any],
        words: bool,
        paired: bool,
        limit: int | None,
        spans: bool = False,
    ) -> EncodedRows:
        ids: list[int] = []
        segments: list[int] = []
        lengths: list[int] = []
        numbers: list[int] = []
        places: list[np.ndarray] = [np.zeros((0, 2), dtype=np.int32)]
        texts: list[int] = []
        cut = 0
        for start in range(0, len(rows), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            for one in _guarded(backend, part, limit is not None, words or spans, self.where):
                ids += one.ids
                lengths.append(len(one))
                if paired:
                    segments += one.type_ids
                if words:
                    numbers += [-1 if word is None else word for word in one.word_ids]
                if spans:
                    places.append(np.array(one.offsets, dtype=np.int32).reshape(-1, 2))
                    texts += [-1 if text is None else text for text in one.sequence_ids]
                if len(one) == limit and one.overflowing:
                    cut += 1
        flat = np.array(ids, dtype=np.int32)
        return EncodedRows(
            flat,
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]),
            np.array(segments, dtype=np.uint8) if paired else np.zeros(len(flat), dtype=np.uint8),
            np.array(numbers, dtype=np.int32) if words else None,
            cut,
            np.concatenate(places) if spans else None,
            np.array(texts, dtype=np.int8) if spans else None,
        )


def _guarded(
    backend: tokenizers.Tokenizer, rows: list[Any], special: bool, words: bool, where: str
) -> list[tokenizers.Encoding]:
    """Encode, turning what the native code throws (a panic is no `Exception`) into a UserError."""
    try:
        if words:  # the fast way keeps no record of words and characters
            return backend.encode_batch(rows, add_special_tokens=special)
        return backend.encode_batch_fast(rows, add_special_tokens=special)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UserError(
            "the tokenizer failed on these texts",
            where=where,
            why=printable(str(error), 120) or type(error).__name__,
            do="check the tokenizer's files, they may be damaged",
        ) from error


def check_length(max_length: int, positions: int | None = None, *, where: str | None = None) -> None:
    """Raise UserError for a maximal length below 3, or above what the model has positions for."""
    if not SHORTEST <= max_length <= MAX_LENGTH:
        raise UserError(
            f"invalid maximum length of {max_length} tokens",
            where=where,
            why=f"allowed: {SHORTEST} ([CLS], one token, [SEP]) to {positions or MAX_LENGTH}",
        )
    if positions is not None and max_length > positions:
        raise UserError(
            f"a maximum length of {max_length} tokens is above the model's {positions} positions",
            where=where,
            do=f"give {positions} or less",
        )


def _check_ids(vocabulary: Mapping[str, int], where: str) -> None:
    """Refuse ids so large that a table of them could not be made."""
    if not vocabulary:
        raise UserError("the tokenizer has no vocabulary", where=where)
    largest = max(vocabulary.values())
    if largest >= tokenizer_limits.MOST_TOKENS:
        raise UserError(
            f"the tokenizer has the id {largest:,}", where=where, why=f"allowed: below {tokenizer_limits.MOST_TOKENS:,}"
        )

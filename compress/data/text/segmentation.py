"""The words of a text that has no spaces between them: by a list of words, or by a segmenter of the user's own.

Whole-word masking needs them in Chinese (Cui et al., arXiv 1906.08101): BERT's tokenizer makes every ideograph a piece
and a word of its own, so that without them a whole word is a single character.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from compress import registry
from compress.data.reading import files, text_files
from compress.data.reading.places import path_of
from compress.errors import UserError, printable

# What BERT's tokenizer sets spaces around: CJK ideographs, not kana or hangul (its reference's `_is_chinese_char`).
_BLOCKS = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f"
)
IDEOGRAPH = re.compile(f"[{_BLOCKS}]")
_UNIT = re.compile(rf"[{_BLOCKS}]|[^\W{_BLOCKS}]+|\s+|.", re.DOTALL)  # what is a word where no listed one begins
_SHOWN = 24  # characters around a difference that an error shows


@dataclass(frozen=True)
class Segmenter:
    """Cuts a text into words. cut: text → its words in order; white space may be missing in them.

    where: what errors call it.  fingerprint: equal for equal lists of words, or for the same function's name.
    """

    cut: Callable[[str], Iterable[str]]
    where: str
    fingerprint: str

    def starts(self, text: str) -> np.ndarray:
        """(W,) int64 ascending: the characters of `text` at which a word begins.

        Raises UserError unless the words hold the characters of the text, white space apart.
        """
        try:
            found = self.cut(text)
            words = found.split() if isinstance(found, str) else list(found)
            solid = ["".join(word.split()) for word in words]
        except Exception as error:  # the user's function may raise anything, or return anything
            why = f"{type(error).__name__}: {printable(str(error), 120)}, at {text_files.show(text)}"
            raise UserError("the segmenter failed on a text", where=self.where, why=why) from error
        at = np.array([i for i, c in enumerate(text) if not c.isspace()], dtype=np.int64)
        given, got = "".join(text.split()), "".join(solid)
        if got != given:
            raise self._changed(given, got)
        lengths = [len(word) for word in solid if word]
        return at[[0, *accumulate(lengths[:-1])]] if lengths else at

    def _changed(self, given: str, got: str) -> UserError:
        place = next((i for i, (a, b) in enumerate(zip(given, got)) if a != b), min(len(given), len(got)))
        start = max(0, place - _SHOWN // 2)
        ours, theirs = (f"'{printable(text[start : start + _SHOWN])}'" for text in (given, got))
        return UserError(
            "the segmenter changed the text",
            where=self.where,
            why=f"given {ours}, returned {theirs}",
            do="it must return every character of the text in order, except white space",
        )


def word_starts(texts: list[str], offsets: np.ndarray, spans: np.ndarray, segmenter: Segmenter) -> np.ndarray:
    """(T,) bool: pieces that hold the first character of a word of the segmenter.

    offsets: (N+1,) the pieces of each text.  spans: (T, 2) the characters of its text that a piece stands for.
    """
    base = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    first = np.zeros(int(base[-1]) + 1, dtype=np.int64)
    for begin, text in zip(base.tolist(), texts):
        first[begin + segmenter.starts(text)] = 1
    before = np.concatenate([[0], np.cumsum(first)])
    shift = np.repeat(base[:-1], np.diff(offsets))
    low, high = spans[:, 0] + shift, spans[:, 1] + shift
    found = before[high] > before[low]
    found[1:] &= low[1:] != low[:-1]  # several pieces of one character, as byte-level BPE has them
    return found


# --- kinds ------------------------------------------------------------------------------------------------------


def import_segmenter(name: str, where: str) -> Segmenter:
    """The user's function `module:function`: text → words. Raises UserError."""
    return Segmenter(registry.function(name, where), f"{where}: {name}", f"function {name}")


def word_list(name: str) -> Segmenter:
    """The longest listed word at every place, from left to right; an ideograph that begins none stands alone.

    name: a UTF-8 file with one word a line. Raises UserError naming the file and line.
    """
    path = path_of(name)
    files.look(path)
    told = path.stat()
    return _word_list(path, told.st_mtime_ns, told.st_size)


@cache
def _word_list(path: Path, changed: int, size: int) -> Segmenter:
    words = set[str]()
    for number, line in text_files.lines(path):
        word = line.strip()
        if len(word.split()) > 1:
            why = f"found {text_files.show(word)}"
            raise UserError(
                "a word contains white space", where=f"{path}:{number}", why=why, do="write one word per line"
            )
        if word:
            words.add(word)
    if not words:
        raise UserError("the word list is empty", where=str(path), why="blank lines only", do="write one word per line")
    digest = hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()
    return Segmenter(_Longest(words), str(path), f"words {digest}")


class _Longest:
    """Forward maximal matching."""

    def __init__(self, words: set[str]) -> None:
        self._words = words
        lengths: dict[str, set[int]] = defaultdict(set)
        for word in words:
            lengths[word[0]].add(len(word))
        self._lengths = {c: sorted(found - {1}, reverse=True) for c, found in lengths.items()}

    def __call__(self, text: str) -> list[str]:
        out, place = [], 0
        while place < len(text):
            end = self._match(text, place)
            out.append(text[place:end])
            place = end
        return out

    def _match(self, text: str, place: int) -> int:
        for length in self._lengths.get(text[place], ()):
            end = place + length
            if text[place:end] in self._words and end <= len(text) and not _inside(text, end):
                return end
        unit = _UNIT.match(text, place)
        assert unit is not None
        return unit.end()


def _inside(text: str, place: int) -> bool:
    """Whether a word of letters or digits goes on at `place`: "AT" must not be found in "ATTACK"."""
    if place >= len(text):
        return False
    return all((c.isalnum() or c == "_") and not IDEOGRAPH.match(c) for c in text[place - 1 : place + 1])

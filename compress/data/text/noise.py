"""Typing mistakes, put into raw text before it is tokenized: letters swapped, dropped, doubled or hit beside their key.

Augmentation for training (Belinkov and Bisk, arXiv 1711.02173; Pruthi et al., arXiv 1905.11268), and what robustness
is measured under. Every draw comes from the generator that is passed in, so that an epoch's text can be made again.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from compress.contracts import Batch, NoiseSpec
from compress.data.batches.randomness import stream
from compress.data.reading.corpus import Corpus
from compress.data.tables.table import Rows

_KEYS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")  # each row stands half a key to the right of the one above
_WORD = re.compile(r"\S+")


def _neighbours() -> dict[str, str]:
    found = {}
    for number, row in enumerate(_KEYS):
        above, below = (_KEYS[i] if 0 <= i < len(_KEYS) else "" for i in (number - 1, number + 1))
        for place, key in enumerate(row):
            near = row[max(0, place - 1) : place] + row[place + 1 : place + 2]
            near += above[place : place + 2] + below[max(0, place - 1) : place + 1]
            found[key] = near
    return found


NEIGHBOURS = _neighbours()
"""Key of a QWERTY keyboard → the keys around it."""


def add_typos(text: str, rate: float, kinds: Sequence[str], random: np.random.Generator) -> str:
    """`text` with about `rate` of its letters and digits mistyped, each by one of `kinds` that can happen to it.

    swap: with a neighbour in the same word.  drop: never the last character of a word.  insert: a key beside it typed
    as well, or the character twice where the keyboard does not hold it (Chinese).  keyboard: a key beside it instead.
    Spaces and punctuation stay, so that words stay words and labels of words stay theirs.
    """
    hit = np.flatnonzero(random.random(len(text)) < rate)
    if not len(hit):
        return text
    units = list(text)
    touched = np.zeros(len(text) + 1, dtype=bool)
    words = {i: span for span in (m.span() for m in _WORD.finditer(text)) for i in range(*span)}
    left: dict[tuple[int, int], int] = {}
    for place, draw, other in zip(hit.tolist(), random.random(len(hit)).tolist(), random.random(len(hit)).tolist()):
        c = text[place]
        if touched[place] or not c.isalnum():
            continue
        word = words[place]
        partner = _partner(text, place, word, touched)
        near = NEIGHBOURS.get(c.lower(), "")
        can = {"swap": partner is not None, "drop": left.get(word, word[1] - word[0]) > 1, "keyboard": bool(near)}
        able = [kind for kind in kinds if can.get(kind, True)]
        if not able:
            continue
        kind = able[int(draw * len(able))]
        key = near[int(other * len(near))] if near else c
        key = key.upper() if c.isupper() else key
        touched[place] = True
        if kind == "swap":
            assert partner is not None
            units[place], units[partner] = units[partner], units[place]
            touched[partner] = True
        elif kind == "drop":
            units[place] = ""
            left[word] = left.get(word, word[1] - word[0]) - 1
        else:
            units[place] = key if kind == "keyboard" else c + key
    return "".join(units)


def _partner(text: str, place: int, word: tuple[int, int], touched: np.ndarray) -> int | None:
    """The letter that `place` can be swapped with so that it shows: the next one of the word, else the one before."""
    for other in (place + 1, place - 1):
        inside = word[0] <= other < word[1]
        if inside and text[other].isalnum() and text[other] != text[place] and not touched[other]:
            return other
    return None


def add_typos_to_rows(rows: Rows, noise: NoiseSpec, random: np.random.Generator) -> Rows:
    """The rows with mistyped texts; lists of words word by word, so that labels of words stay theirs.

    A context that questions are asked about stays as it is, since answers are places in it.
    """
    columns = {}
    for role, column in rows.columns.items():
        if role == "context":  # answers are places in it, which typing mistakes would move
            columns[role] = column
            continue
        values = column.to_pylist()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            made = [add_typos(text, noise.rate, noise.kinds, random) for text in values]
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            made = [[add_typos(word, noise.rate, noise.kinds, random) for word in words] for words in values]
        else:
            columns[role] = column
            continue
        columns[role] = pa.chunked_array([pa.array(made, column.type)])
    return replace(rows, columns=columns)


def add_typos_to_queries(rows: Rows, noise: NoiseSpec, random: np.random.Generator) -> Rows:
    """The rows of a search with mistyped queries, equal ones alike. Documents stay as they are: rows share them."""
    texts = rows.texts
    made = {text: add_typos(text, noise.rate, noise.kinds, random) for text in dict.fromkeys(texts)}
    typed = pa.chunked_array([pa.array([made[text] for text in texts], rows.columns["text"].type)])
    return replace(rows, columns={**rows.columns, "text": typed})


def add_typos_to_corpus(corpus: Corpus, split: str, noise: NoiseSpec, seed: int, epoch: int) -> Corpus:
    """The corpus with one split mistyped, as it is read in `epoch`."""
    rows = add_typos_to_rows(corpus.splits[split], noise, stream("corpus-noise", seed, epoch))
    told = [corpus.fingerprint, noise.model_dump(mode="json"), seed, epoch]
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return Corpus({**corpus.splits, split: rows}, corpus.name, digest, corpus.notes)


class EachEpoch:
    """A BatchSource whose rows are made anew for each epoch, by a pure function of the epoch.

    made: epoch → the source that holds that epoch's rows.  mark: what the rows depend on beside the epoch.
    """

    def __init__(self, made: Callable[[int], Any], mark: object) -> None:
        self._made = made
        self._held: tuple[int, Any] | None = None
        self._steps: dict[int, int] = {}
        told = json.dumps(["each-epoch-1", mark, self.of(0).fingerprint])
        self.fingerprint = hashlib.sha256(told.encode()).hexdigest()

    def of(self, epoch: int) -> Any:
        """The source of one epoch; only the last one asked for is kept."""
        if self._held is None or self._held[0] != epoch:
            self._held = None  # freed before the next is made
            self._held = (epoch, self._made(epoch))
        return self._held[1]

    def shard(self, rank: int, world: int) -> EachEpoch:
        """The same steps as read by one of `world` processes, under the same fingerprint."""
        twin = copy.copy(self)
        twin._made, twin._held = lambda epoch: self._made(epoch).shard(rank, world), None
        return twin

    def with_mask_seed(self, mask_seed: int) -> EachEpoch:
        """The same text in the same steps with other pieces hidden, of sources that hide pieces."""
        return EachEpoch(lambda epoch: self.of(epoch).with_mask_seed(mask_seed), ["masked by", mask_seed])

    def steps(self, epoch: int) -> int:
        """Optimizer steps in this epoch: noise changes how many pieces a text has."""
        if epoch not in self._steps:
            self._steps[epoch] = self.of(epoch).steps(epoch)
        return self._steps[epoch]

    def step(self, epoch: int, index: int) -> Sequence[Batch]:
        """The micro-batches of one optimizer step."""
        return self.of(epoch).step(epoch, index)

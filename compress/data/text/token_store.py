"""Tokens of a corpus on the disk, in shards: made once, checked at each opening, read a few places at a time.

A shard is a folder with a manifest, written whole or not at all, so that tokenizing that was interrupted goes on after
the last shard, and what is damaged or cut is found by its sha256 and made again. Reading maps a file for the moment of
the reading only: what the process holds does not grow with what it has read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from compress.data.reading.corpus import Corpus
from compress.data.text.segmentation import Segmenter
from compress.data.text.tokenizer import Tokenizer
from compress.data.text.tokens import AT_ONCE, Part, Tokens, no_tokens, tokenize_documents, tokens_mark
from compress.storage import atomic, safe
from compress.storage.cache import cache_folder
from compress.storage.lock import file_lock

FORMAT = "token-store-1"
SHARD = 1 << 23
"""Tokens of a shard: it is closed with the first documents that reach as many."""
FILES = {"ids": np.int32, "word_starts": np.bool_, "sentences": np.int64, "documents": np.int64}
NOTE = "shard.json"


class ShardedArray:
    """One dimension of numbers that lies in several files, one after the other."""

    def __init__(self, paths: Sequence[Path], dtype: type[np.generic]) -> None:
        self.dtype = np.dtype(dtype)
        sizes = [path.stat().st_size // self.dtype.itemsize for path in paths]
        # an empty file cannot be mapped, and has nothing to say
        self._paths = [path for path, size in zip(paths, sizes, strict=True) if size]
        self._bounds = np.cumsum([0, *(size for size in sizes if size)])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def __getitem__(self, at: Any, /) -> Any:
        """A slice without a step, an array of places or one place; copied into memory."""
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            assert step == 1
            return self._slice(start, max(start, stop))
        places = np.asarray(at, dtype=np.int64)
        flat = np.atleast_1d(places)
        out = np.empty(len(flat), dtype=self.dtype)
        shards = np.searchsorted(self._bounds, flat, side="right") - 1
        for shard in np.unique(shards):
            here = shards == shard
            out[here] = self._map(shard)[flat[here] - self._bounds[shard]]
        return out if places.ndim else out[0]

    def _slice(self, start: int, stop: int) -> np.ndarray:
        parts = [np.empty(0, dtype=self.dtype)]
        for shard in range(len(self._paths)):
            low, high = max(start, self._bounds[shard]), min(stop, self._bounds[shard + 1])
            if low < high:
                parts.append(np.array(self._map(shard)[low - self._bounds[shard] : high - self._bounds[shard]]))
        return parts[-1] if len(parts) == 2 else np.concatenate(parts)

    def _map(self, shard: int) -> np.ndarray:
        return np.memmap(self._paths[shard], dtype=self.dtype, mode="r")


def load_or_store_tokens(
    corpus: Corpus,
    tokenizer: Tokenizer,
    split: str = "train",
    segmenter: Segmenter | None = None,
    *,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Tokens:
    """One split as token ids on the disk, the same ones as `tokenize` makes.

    folder: where, `cache_folder()` when None; shards that are there and whole are not made again.
    Raises UserError when nothing is left, the disk is full or another process is making them.
    """
    told = [FORMAT, SHARD, tokens_mark(corpus, tokenizer, split).hexdigest(), segmenter and segmenter.fingerprint]
    key = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]
    place = (folder or cache_folder()) / "tokens" / key
    with file_lock(place.with_suffix(".lock")):
        shards, read, done = _there(place, say)
        if not done:
            shards = _make(place, shards, read, corpus, tokenizer, split, segmenter, say)
    mark = tokens_mark(corpus, tokenizer, split)
    for shard in shards:
        mark.update(json.dumps({n: r.sha256 for n, r in sorted(atomic.read_manifest(shard).items())}).encode())
    found = {name: ShardedArray([shard / f"{name}.bin" for shard in shards], kind) for name, kind in FILES.items()}
    return Tokens(**found, fingerprint=mark.hexdigest(), stored=True)


def _there(place: Path, say: Callable[[str], None]) -> tuple[list[Path], int, bool]:
    """The whole shards, how many documents of the source they hold, and whether they are all.

    A shard that is damaged goes, with those after it.
    """
    shards: list[Path] = []
    read, done = 0, False
    found = sorted(place.glob("shard-*")) if place.is_dir() else []
    for number, shard in enumerate(found):
        problems = atomic.verify_folder(shard) if shard.name == _name(number) else ["an earlier shard is missing"]
        if problems:
            say(f"{shard} is damaged ({problems[0]}); this shard and the later ones are rebuilt")
            for bad in reversed(found[number:]):
                atomic.remove_folder(bad)
            break
        note = safe.read_json(shard / NOTE)
        shards.append(shard)
        read, done = note["read"], note["last"]
    return shards, read, done


def _make(
    place: Path,
    shards: list[Path],
    read: int,
    corpus: Corpus,
    tokenizer: Tokenizer,
    split: str,
    segmenter: Segmenter | None,
    say: Callable[[str], None],
) -> list[Path]:
    """Write the shards that are missing; returns all."""
    made = list(shards)
    sentences = documents = tokens = 0
    if made:
        tokens = _last(made, "sentences")
        sentences = _last(made, "documents")
        say(f"{split}: resuming tokenization after {tokens:,} tokens")
    texts = islice(corpus.texts(split), read, None)
    for parts, count, last in _shards(tokenize_documents(texts, tokenizer, segmenter)):
        read += count
        lengths = np.concatenate([part.sentences for part in parts])
        counts = np.concatenate([part.documents for part in parts])
        documents += len(counts)
        if last and not documents and not made:
            raise no_tokens(corpus, split)
        zero = [np.zeros(0 if made else 1, np.int64)]  # offsets begin with 0, once
        content = {
            "ids": np.concatenate([part.ids for part in parts]),
            "word_starts": np.concatenate([part.word_starts for part in parts]),
            "sentences": np.concatenate([*zero, tokens + np.cumsum(lengths)]),
            "documents": np.concatenate([*zero, sentences + np.cumsum(counts)]),
        }
        tokens, sentences = tokens + int(lengths.sum()), sentences + int(counts.sum())
        shard = place / _name(len(made))
        size = sum(array.nbytes for array in content.values())
        with atomic.new_folder(shard, needed=size) as temp:
            for name, array in content.items():
                atomic.write_bytes(temp / f"{name}.bin", array.astype(FILES[name]).tobytes())
            atomic.write_json(temp / NOTE, {"format": FORMAT, "read": read, "last": last})
        made.append(shard)
        say(f"{split}: {tokens:,} tokens of {read:,} documents on disk" + (", complete" if last else ""))
    return made


def _shards(parts: Iterator[Part]) -> Iterator[tuple[list[Part], int, bool]]:
    """Parts of one shard, how many documents were read for it, and whether it is the last one."""
    held: list[Part] = []
    tokens = 0
    part = next(parts, _NOTHING)
    while part is not None:
        following = next(parts, None)
        held.append(part)
        tokens += len(part.ids)
        if following is None or tokens >= SHARD:
            yield held, AT_ONCE * len(held), following is None
            held, tokens = [], 0
        part = following


_NOTHING = Part(np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.int64), np.zeros(0, np.int64))


def _last(shards: Sequence[Path], name: str) -> int:
    """The last number of one of the offsets."""
    found = ShardedArray([shard / f"{name}.bin" for shard in shards], FILES[name])
    return int(found[len(found) - 1])


def _name(number: int) -> str:
    return f"shard-{number:05d}"

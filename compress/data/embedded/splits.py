"""Who may use which sentence: splits that share no text, reproducible on any machine and Python version."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable

Row = dict[str, object]

# Sentences are assigned to evaluation or to training by their own digest, whatever the seed, the set or the split that
# first writes them: what one set tests on is never in another set's train split, in the pool or in the corpus.
_EVALUATION_SHARE = 32  # of 256

_KEPT = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789")
_LETTERS_AND_DIGITS = bytes(byte if byte in _KEPT else ord(" ") for byte in range(256))


def normalize_text(text: str) -> str:
    """Lower case, letters and digits only, single spaces: two texts that are equal so are one text."""
    return b" ".join(text.lower().encode("ascii", "replace").translate(_LETTERS_AND_DIGITS).split()).decode()


def for_evaluation(text: str) -> bool:
    """Whether `text` belongs to validation and test (one in eight does) rather than to everything else."""
    return hashlib.blake2b(normalize_text(text).encode(), digest_size=1).digest()[0] < _EVALUATION_SHARE


def stream(*name: object) -> random.Random:
    """The random stream of that name; only its `random()` may be called (the one call Python keeps as it is)."""
    digest = hashlib.sha256("/".join(str(part) for part in name).encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def collect(count: int, make: Callable[[], tuple[Row, Iterable[str]]], seen: set[str]) -> list[Row]:
    """`count` rows from `make`, which gives a row and its key texts; rows with a key text used before are dropped."""
    rows: list[Row] = []
    while len(rows) < count:
        row, texts = make()
        keys = [normalize_text(text) for text in texts]
        if not any(key in seen for key in keys):
            seen.update(keys)
            rows.append(row)
    return rows

"""Random numbers by name: every draw is a pure function of what it is for, so any position can be rebuilt."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(*parts: str | int) -> np.random.Generator:
    """A generator for exactly this purpose, e.g. `stream("mask", seed, epoch, index)`.

    The Philox key is a hash of the parts: neighbouring seeds and epochs give unrelated streams.
    """
    digest = hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype="<u8").astype(np.uint64)))


def order(rows: int, *parts: str | int) -> np.ndarray:
    """(rows,) int64: a permutation of 0..rows-1.

    Built on the raw bit stream and a stable sort: NumPy promises the bits of Philox for good, but not the algorithm
    behind `Generator.permutation`, and a resumed run must see the order it started with.
    """
    bits = stream(*parts).bit_generator.random_raw(rows)
    return np.argsort(bits, kind="stable").astype(np.int64)


def draw_spread_rows(total: int, count: int, seed: int, purpose: str = "layer-study") -> np.ndarray:
    """Places of `count` of `total` rows, ascending: one drawn from each of as many equal stretches."""
    starts = np.arange(count) * total // count
    ends = np.arange(1, count + 1) * total // count
    drawn = stream(purpose, seed).bit_generator.random_raw(count) % (ends - starts).astype(np.uint64)
    return starts + drawn.astype(np.int64)

"""Splits that are missing: cut from others by the content of the rows, so that the cut never moves, and say so."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from compress.data.tables.table import Rows
from compress.data.text.texts import hash_contents
from compress.errors import UserError, format_count

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
SMALLEST = 10  # rows below which nothing is cut


def keys(rows: Rows, seed: int) -> np.ndarray:
    """(N,) float64 in [0, 1): where each row's content falls. Rows that differ in case and spaces only fall together,
    whatever their order.

    So do all questions about one context: a model that has learned from it would know it.
    """
    if "context" in rows.columns:
        rows = replace(rows, columns={"context": rows.columns["context"]})
    out = np.empty(len(rows))
    salt = f"split:{seed}".encode()
    place = 0
    for part in rows.contents():
        for texts in part:
            digest = hashlib.blake2b("\x1f".join(texts).encode(), digest_size=8, key=salt).digest()
            out[place] = int.from_bytes(digest, "little") / 2.0**64
            place += 1
    _, alike = np.unique(hash_contents(rows), return_inverse=True)
    least = np.ones(len(rows))
    np.minimum.at(least, alike, out)
    return least[alike]


def split_rows(rows: Rows, shares: Mapping[str, float], seed: int, where: str) -> dict[str, Rows]:
    """Divide `rows` into parts of about these shares. Raises UserError when there are too few rows."""
    place = keys(rows, seed)
    distinct = np.unique(place)
    if len(rows) < SMALLEST or len(distinct) < len(shares):
        raise UserError(
            f"too few rows for {len(shares)} splits",
            where=where,
            why=f"{format_count(len(rows))}, {len(distinct)} of them different",
            do=f"at least {SMALLEST} are needed, or give the splits as files",
        )
    bounds = np.cumsum(list(shares.values()))[:-1]
    part = np.searchsorted(bounds, place, side="right").astype(np.int8)
    if len(np.unique(part)) < len(shares):  # so few rows that chance left a part empty: count instead of compare
        rank = np.searchsorted(distinct, place)
        steps = np.maximum(np.round(bounds * len(distinct)).astype(int), np.arange(1, len(shares)))
        steps = np.minimum(steps, len(distinct) - np.arange(len(shares) - 1, 0, -1))
        part = np.searchsorted(steps, rank, side="right")
    return {name: rows.take(np.flatnonzero(part == i)) for i, name in enumerate(shares)}


def complete(
    splits: Mapping[str, Rows], needed: Sequence[str], seed: int, where: str, notes: list[str]
) -> dict[str, Rows]:
    """All of `needed`, cutting or lending what is missing; everything done is noted. Raises UserError without train."""
    have = dict(splits)
    if "train" in needed and "train" not in have:
        raise UserError(
            "no train split",
            where=where,
            why="found " + ", ".join(have),
            do="add train.jsonl (or .csv, .parquet), or choose the split to use as train",
        )
    wants = [name for name in ("validation", "test") if name in needed and name not in have]
    if not wants:
        return have
    if not have.keys() & {"validation", "test"} and "train" in have:
        # all three, whatever is needed now: a later evaluation must find the rows that training did not see
        parts = split_rows(have["train"], SHARES, seed, where)
        sizes = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
        notes.append(f"no splits given: split by content into {sizes} (seed {seed})")
        return {**have, **parts}
    if "validation" in wants and "train" in have:
        parts = split_rows(have["train"], {"train": 0.9, "validation": 0.1}, seed, where)
        notes.append(f"no validation split: {format_count(len(parts['validation']))} held out from train (seed {seed})")
        return {**have, **parts}
    lender = "validation" if "test" in wants else "test"
    if lender not in have:
        raise UserError(f"no {wants[0]} split", where=where, why="found " + ", ".join(have))
    have[wants[0]] = have[lender]
    notes.append(
        f"no {wants[0]} split: the {lender} rows are used instead, so its metrics are not measured on unseen rows"
    )
    return have

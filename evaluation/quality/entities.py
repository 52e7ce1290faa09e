"""Entities in tag sequences (Ramshaw and Marcus 1995), strict: counted as seqeval counts in mode "strict".

Two schemes: "iob2" (B- opens, I- of the same type goes on) and "bioes" (S- alone, or B- I-* E- complete). A piece that
the scheme does not allow, such as I- with no B- before it, is part of no entity; `repair` says what it may have meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Scheme = Literal["iob2", "bioes"]
PREFIXES: dict[str, str] = {"iob2": "BIO", "bioes": "BIOES"}


@dataclass(frozen=True, order=True)
class Entity:
    """Tokens start..end-1 of one sequence, with their type; `_` where tags are bare (`B`, `I`)."""

    start: int
    end: int
    type: str


def split_tag(tag: str, scheme: Scheme) -> tuple[str, str]:
    """(prefix, type) of a tag such as B-PER or O. Raises ValueError for a prefix that the scheme does not have."""
    prefix, rest = tag[:1], tag[1:]
    if not prefix or prefix not in PREFIXES[scheme] or (rest and not rest.startswith("-") and prefix != "O"):
        raise ValueError(
            f"'{tag}' is not a tag of {scheme}: tags are O, or one of {', '.join(PREFIXES[scheme])} and -TYPE"
        )
    return prefix, rest.strip("-") or "_"


def scheme_of(tags: Sequence[str]) -> Scheme | None:
    """The scheme of these distinct tags: bioes where E- or S- occurs, None where they are no tags of chunks."""
    prefixes = {tag[:1] for tag in tags}
    shaped = all(tag == "O" or (tag[:1] in "BIES" and tag[1:2] == "-" and len(tag) > 2) for tag in tags)
    if not shaped or not prefixes - {"O"}:
        return None
    return "bioes" if prefixes & {"E", "S"} else "iob2"


def entities(tags: Sequence[str], scheme: Scheme = "iob2") -> list[Entity]:
    """The entities of one sequence, in order. Raises ValueError for a tag that the scheme does not have."""
    found: list[Entity] = []
    open_at, open_type = -1, ""  # of the entity that the next token may continue
    for i, (prefix, kind) in enumerate((*(split_tag(tag, scheme) for tag in tags), ("O", "_"))):
        goes_on = open_at >= 0 and prefix in "IE" and kind == open_type
        if goes_on and prefix == "I":
            continue
        if open_at >= 0 and (goes_on or scheme == "iob2"):
            found.append(Entity(open_at, i + goes_on, open_type))
        open_at, open_type = (i, kind) if prefix == "B" else (-1, "")
        if prefix == "S":
            found.append(Entity(i, i + 1, kind))
    return found


def repair(tags: Sequence[str], scheme: Scheme = "iob2") -> list[str]:
    """The same tags in legal form: what belongs to no entity by the strict rules becomes one, types are kept.

    A run of tokens of one type is an entity; B- and S- open a new one, E- and S- close it. So an I- with no B- before
    it becomes B-, and in bioes a run that was never closed is closed. Legal tags stay as they are. Raises as
    `entities`.
    """
    pieces = [split_tag(tag, scheme) for tag in tags]
    result = ["O"] * len(pieces)
    for start, end in _runs(pieces):
        suffix = tags[start][1:]
        for i in range(start, end):
            result[i] = _prefix(i, start, end, scheme) + suffix
    return result


def _runs(pieces: Sequence[tuple[str, str]]) -> Iterator[tuple[int, int]]:
    start = -1
    for i, (prefix, kind) in enumerate((*pieces, ("O", "_"))):
        before = pieces[i - 1] if i else ("O", "_")
        if start >= 0 and (prefix in "OBS" or before[0] in "ES" or kind != before[1]):
            yield start, i
            start = -1
        if start < 0 and prefix != "O":
            start = i


def _prefix(i: int, start: int, end: int, scheme: Scheme) -> str:
    if scheme == "iob2":
        return "B" if i == start else "I"
    if end - start == 1:
        return "S"
    return "B" if i == start else "E" if i == end - 1 else "I"


def entity_counts(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: Scheme = "iob2"
) -> tuple[NDArray[np.int64], list[str]]:
    """((N, K, 3) counts (hits, predicted, gold) of N sequences and K types, the types in alphabetical order).

    `counts.f1_micro` of their sum over N is entity-level micro F1; `counts.bootstrap_counts` gives its interval over
    sequences. Raises ValueError when there are no sequences, or when numbers or lengths differ, naming the sequence.
    """
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold sequences and {len(predicted)} predicted ones")
    if not len(gold):
        raise ValueError("no rows to score")
    pairs = []
    for row, (truth, answer) in enumerate(zip(gold, predicted, strict=True)):
        if len(truth) != len(answer):
            raise ValueError(f"sequence {row} has {len(truth)} gold tags and {len(answer)} predicted ones")
        pairs.append((set(entities(truth, scheme)), set(entities(answer, scheme))))
    types = sorted({entity.type for pair in pairs for side in pair for entity in side})
    place = {name: k for k, name in enumerate(types)}
    counts = np.zeros((len(pairs), len(types), 3), dtype=np.int64)
    for row, (truth, answer) in enumerate(pairs):
        for column, side in enumerate((truth & answer, answer, truth)):
            for entity in side:
                counts[row, place[entity.type], column] += 1
    return counts, types

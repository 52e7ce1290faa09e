"""Selects the tokens to keep: the required ones, then the most frequent ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from compress.errors import UserError
from compress.stages.prune_vocab.dependencies import TokenizerParts
from compress.stages.prune_vocab.spec import Spec


@dataclass(frozen=True)
class Choice:
    """kept: (v,) int64, ascending ids of the pieces that stay.  least: how many always stay.  rows: V before.

    coverage: the share, 0 to 1, of the counted pieces that are kept, unknown ones apart.
    """

    kept: np.ndarray
    least: int
    rows: int
    coverage: float

    @property
    def new_ids(self) -> np.ndarray:
        """(V,) int64: the new id of each piece, -1 of those that go."""
        found = np.full(self.rows, -1, dtype=np.int64)
        found[self.kept] = np.arange(len(self.kept))
        return found


def always(pieces: TokenizerParts, counts: np.ndarray, spec: Spec, rows: Collection[int], where: str) -> set[int]:
    """Ids that stay whatever the text holds: special and added tokens, bytes, single characters, what they are made of.

    counts: see `choose`.  rows: ids that the model itself needs.
    Raises UserError where a character that is left out could not be told from nothing.
    """
    kept = set(pieces.added) | set(pieces.bytes) | set(pieces.lowest) | set(rows)
    if pieces.unknown is not None:
        kept.add(pieces.unknown)
    if spec.characters == "all":
        kept |= pieces.characters.keys()
    elif pieces.unknown is None and not pieces.bytes:
        raise UserError(
            "the tokenizer has neither an unknown token nor byte fallback",
            where=where,
            why="characters without a token would be silently lost",
            do="set characters: all",
        )
    else:
        kept |= pieces.find_used_characters([i for i in np.flatnonzero(counts).tolist() if i in pieces.names])
    return pieces.add_parents(kept)


def choose(pieces: TokenizerParts, counts: np.ndarray, kept: set[int], spec: Spec, where: str) -> Choice:
    """The pieces that stay. counts: (V,) how often the text holds each, special tokens left out.  kept: `always`.

    Raises UserError for a text without known pieces, a size below the least possible or not below the vocabulary, and
    where nothing would go.
    """
    counts = counts.copy()
    if pieces.unknown is not None:
        counts[pieces.unknown] = 0
    total, least = int(counts.sum()), len(kept)
    if not total:
        raise UserError(
            "the text contains no token of the tokenizer's vocabulary",
            where=where,
            do="give text in the model's language",
        )
    # Of pieces that the text lacks those first that a text could hold: BERT's first ids are kept free for others' use.
    order = np.lexsort((np.arange(len(counts)), _never_cut(pieces, len(counts)), -counts))
    candidates = [i for i in order.tolist() if i in pieces.names and i not in kept]
    if spec.size is not None:
        _fill(pieces, kept, candidates, spec)
    elif spec.min_count is not None:
        enough = spec.min_count
        kept |= pieces.add_parents([i for i in candidates if counts[i] >= enough])
    else:
        assert spec.coverage is not None
        _cover(pieces, kept, candidates, counts, spec.coverage / 100 * total)
    if kept >= pieces.names.keys():
        do = "set a lower coverage, a higher minimum count or a smaller size"
        if least == len(pieces.names) and spec.characters == "all":  # as in a Chinese vocabulary
            do = "they are single characters and special tokens; keep only those in the text with --characters used"
        raise UserError(f"all {len(pieces.names):,} tokens are needed, so nothing can be removed", where=where, do=do)
    ids = np.array(sorted(kept), dtype=np.int64)
    return Choice(ids, least, len(counts), float(counts[ids].sum()) / total)


def _never_cut(pieces: TokenizerParts, rows: int) -> np.ndarray:
    """(rows,) bool: pieces that begin a word and that the tokenizer does not even make of their own text."""
    prefix = pieces.model.get("continuing_subword_prefix")
    first = [i for i, name in sorted(pieces.names.items()) if not (prefix and name.startswith(prefix))]
    made = pieces.tokenizer.encode_plain([pieces.tokenizer.decode([i]) for i in first], words=False)
    found = np.zeros(rows, dtype=bool)
    for index, start, end in zip(first, made.offsets[:-1], made.offsets[1:], strict=True):
        found[index] = index not in made.ids[start:end]
    return found


def _cover(
    pieces: TokenizerParts, kept: set[int], candidates: Iterable[int], counts: np.ndarray, wanted: float
) -> None:
    covered = int(counts[sorted(kept)].sum())
    for index in candidates:
        if covered >= wanted - 1e-9 or not counts[index]:
            return
        new = pieces.add_parents([index]) - kept
        kept |= new
        covered += int(counts[sorted(new)].sum())


def _fill(pieces: TokenizerParts, kept: set[int], candidates: Iterable[int], spec: Spec) -> None:
    """Raises UserError for a size that is too small or changes nothing."""
    size, rows = spec.size, len(pieces.names)
    assert size is not None
    if size < len(kept):
        characters = sum(index in pieces.characters for index in kept)
        more = ", or set characters: used" if spec.characters == "all" else ""
        raise UserError(
            f"a vocabulary of {size:,} tokens",
            where="size",
            why=f"the minimum is {len(kept):,}: special and added tokens, {characters:,} single characters, and "
            "the tokens they are merged from",
            do=f"give {len(kept):,} or more{more}",
        )
    if size >= rows:
        raise UserError(f"a vocabulary of {size:,} tokens", where="size", why=f"the model has {rows:,}", do="give less")
    for index in candidates:
        if len(kept) == size:
            return
        new = pieces.add_parents([index]) - kept
        if len(kept) + len(new) <= size:
            kept |= new

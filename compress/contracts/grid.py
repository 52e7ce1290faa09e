"""How the sequences of a packed batch lie, worked out on the host, where their lengths are known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MOST_PADDING = 2.0
"""How many times the pairs of its real tokens a padded block has at most: the factor on the memory of its maps."""
MOST_PAIRS = 1 << 22
"""Pairs of tokens of a padded block, padding included, unless one sequence has more: with 12 heads its scores take 200
MB in fp32, which bounds what is computed at a time."""


def divide(lengths: Sequence[int], *, padded: bool) -> list[Sequence[int]]:
    """The lengths of neighbouring sequences, block by block: those of one length, or padded ones of like length."""
    if not padded:
        return [list(run) for _, run in groupby(lengths)]
    blocks: list[list[int]] = []
    pairs = longest = 0
    for length in reversed(lengths):  # the last is the longest where rows are in order of their length
        pairs, longest = pairs + length * length, max(longest, length)
        wide = (len(blocks[-1]) + 1) * longest**2 if blocks else 0
        if not blocks or wide > min(MOST_PADDING * pairs, MOST_PAIRS):
            blocks.append([])
            pairs, longest = length * length, length
        blocks[-1].append(length)
    return [block[::-1] for block in reversed(blocks)]


def has_padding(lengths: Sequence[int]) -> bool:
    """Whether a block of these is padded."""
    return len(set(lengths)) > 1


def lay_out(lengths: Sequence[int], fixed_length: int | None = None) -> dict[str, np.ndarray]:
    """What attention on a GPU reads of the lengths of B sequences of T tokens, int32 but for the last:

    bounds: (B+1,) where each begins.  rows: (T,) the sequence of each token.  Of the padded blocks, end to end,
    sources: the block's token in each place, where padding repeats the last token of its sequence; places: the place of
    each token; is_padding: bool, of each place.
    fixed_length: all sequences are one block, padded to this length, so that shapes depend on B and T alone.
    """
    import numpy as np

    counts = np.asarray(lengths, dtype=np.int64)
    if fixed_length is None:
        parts = [_pad(np.asarray(x), max(x)) for x in divide(lengths, padded=True) if has_padding(x)]
    else:
        parts = [_pad(counts, fixed_length)]
    if len(parts) != 1:
        nothing = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool))
        parts = [tuple(np.concatenate(x) for x in zip(nothing, *parts, strict=True))]
    sources, places, is_padding = parts[0]
    found = {
        "bounds": np.concatenate([[0], np.cumsum(counts)]),
        "rows": np.repeat(np.arange(len(counts)), counts),
        "sources": sources,
        "places": places,
    }
    return {name: x.astype(np.int32) for name, x in found.items()} | {"is_padding": is_padding}


def _pad(lengths: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """sources, places and is_padding of one block, padded to this length."""
    import numpy as np

    steps, ends = np.arange(length), np.cumsum(lengths)
    is_padding = (steps >= lengths[:, None]).reshape(-1)
    last = np.maximum(ends - 1, 0)[:, None]
    sources = np.minimum((ends - lengths)[:, None] + steps, last).reshape(-1)
    return sources, np.flatnonzero(~is_padding), is_padding

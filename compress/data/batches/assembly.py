"""The rows of a step of running text, put together as [CLS] A [SEP] (B [SEP])."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compress.contracts import Batch
from compress.data.batches.examples import pack
from compress.data.batches.ragged import gather
from compress.data.text.tokens import Tokens


class AssembledRows:
    """The rows of a step as [CLS] A [SEP] (B [SEP]), packed, without a Python loop over rows.

    between: how many separators stand between A and B.
    """

    def __init__(
        self,
        ranges: list[tuple[np.ndarray, np.ndarray]],
        cls: int,
        sep: int,
        between: int,
        tokens: Tokens,
        is_special: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        sizes = np.stack([end - start for start, end in ranges])  # (segments, B)
        lengths = sizes.sum(0) + 2 + between * (len(ranges) - 1)
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        total = int(self.offsets[-1])
        self.ids = np.full(total, sep, dtype=np.int32)
        self.ids[self.offsets[:-1]] = cls
        self.segments = np.zeros(total, dtype=np.uint8)
        places, origins = [], []
        at = self.offsets[:-1] + 1
        for number, (start, _) in enumerate(ranges):
            size = sizes[number]
            inner = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
            places.append(np.repeat(at, size) + inner)
            origins.append(np.repeat(start, size) + inner)
            if number:
                self.segments[places[-1]] = number
                self.segments[at + size] = number
            at = at + size + between
        self.text, self.source = np.concatenate(places), np.concatenate(origins)
        self.ids[self.text] = tokens.ids[self.source]
        self.special = np.ones(total, dtype=bool)
        self.special[self.text] = is_special(self.ids[self.text])
        self.word_starts = np.ones(total, dtype=bool)
        self.word_starts[self.text] = tokens.word_starts[self.source]

    def batch(
        self, part: np.ndarray, rows: np.ndarray, ids: np.ndarray, chosen: np.ndarray, labels: np.ndarray | None
    ) -> Batch:
        """The packed micro-batch of some of the rows."""
        tokens, offsets = gather(self.offsets, part)
        hidden = np.flatnonzero(chosen[tokens])
        return pack(
            ids[tokens],
            offsets,
            segments=self.segments[tokens],
            special=self.special[tokens],
            row_ids=rows[part],
            mlm_positions=hidden,
            mlm_labels=self.ids[tokens[hidden]],
            pair_labels=None if labels is None else labels[part],
        )

"""Training batches of a task's encoded rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compress.contracts import Batch
from compress.data.batches.epoch_order import EpochOrder, micro_batches
from compress.data.batches.examples import Examples, collate
from compress.data.batches.ragged import gather


class TaskBatches(EpochOrder):
    """A BatchSource over encoded rows of a task; labelled and unlabelled rows may be mixed (`examples.join`).

    by_query: the documents of a query stay in one micro-batch, which may be larger than `max_tokens` then; a step has
    so many whole queries that its rows are `rows_per_step` on average.
    """

    def __init__(
        self,
        examples: Examples,
        rows_per_step: int,
        max_tokens: int,
        seed: int,
        *,
        by_query: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._bounds: np.ndarray | None = None
        count = len(examples)
        if by_query:
            assert examples.queries is not None
            starts = np.flatnonzero(np.diff(examples.queries, prepend=-1))
            self._bounds = np.append(starts, len(examples))
            count = len(starts)
            rows_per_step = max(1, round(rows_per_step * count / len(examples)))
        super().__init__(count, rows_per_step, max_tokens, seed, "task", rank, world)
        self.examples = examples
        self.longest = int(examples.lengths.max())
        """Tokens of the longest row."""
        self.fingerprint = self._mark(examples.fingerprint, *(["by query"] if by_query else []))

    def step(self, epoch: int, index: int) -> Sequence[Batch]:
        """The micro-batches of one optimizer step."""
        rows = self.step_rows(epoch, index)
        ends = self.examples.offsets if self._bounds is None else self.examples.offsets[self._bounds]
        lengths = ends[rows + 1] - ends[rows]
        own = self._own(lengths)
        parts = micro_batches(own, lengths, self.max_tokens) if len(own) else []
        if self._bounds is None:
            return [collate(self.examples, rows[part]) for part in parts]
        return [collate(self.examples, gather(self._bounds, rows[part])[0]) for part in parts]

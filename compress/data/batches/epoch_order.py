"""Which rows make up step i of epoch e, a pure function of (seed, epoch), and how a token budget divides them."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Self

import numpy as np

from compress.data.batches.deal import deal
from compress.data.batches.randomness import LongOrder
from compress.errors import UserError

RULE = "order-1"  # of order, steps and micro-batches; part of every fingerprint


def micro_batches(rows: np.ndarray, lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """`rows` sorted by length and divided so that no part has more than `max_tokens` tokens.

    Like lengths side by side let attention run as a few dense groups. A row above the budget stands alone. As few parts
    as the budget allows, of about equal size: a small last part would waste the processor.
    """
    ranked = rows[np.argsort(lengths[rows], kind="stable")]
    sizes = lengths[ranked]
    parts = max(1, -(-int(sizes.sum()) // max_tokens))
    for goal in (-(-int(sizes.sum()) // parts), max_tokens):
        cuts = cut_by_tokens(sizes, min(goal + int(sizes[-1]) // 2, max_tokens))
        if len(cuts) + 1 <= parts or goal == max_tokens:
            break
    return np.split(ranked, cuts)


def cut_by_tokens(sizes: np.ndarray, budget: int) -> list[int]:
    """Where `sizes`, in order, are cut so that no part has more than `budget` in all; one above it stands alone."""
    cuts, held = [], 0
    for i, size in enumerate(sizes.tolist()):
        if held and held + size > budget:
            cuts.append(i)
            held = 0
        held += size
    return cuts


class EpochOrder:
    """Rows in an order of their own each epoch, `rows_per_step` at a time; the last step takes what is left.

    rank, world: which of how many processes reads. Each has a part of a step's rows with about as many tokens (`deal`);
    what is drawn for a step is drawn for all its rows, so that the processes together see what one alone would, and
    share one fingerprint.
    """

    def __init__(
        self,
        rows: int,
        rows_per_step: int,
        max_tokens: int,
        seed: int,
        purpose: str,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        assert 0 <= rank < world, (rank, world)
        if rows < 1:
            raise UserError("there are no rows to train on")
        if rows_per_step < 1 or max_tokens < 1:
            raise UserError("batch_rows and max_tokens must be 1 or more", why=f"found {rows_per_step}, {max_tokens}")
        self.rows, self.rows_per_step, self.max_tokens = rows, rows_per_step, max_tokens
        self.seed, self._purpose = seed, purpose
        self._rank, self._world = rank, world
        self._held: tuple[int, LongOrder] | None = None

    def steps(self, epoch: int) -> int:
        """Optimizer steps in this epoch."""
        return -(-self.rows // self.rows_per_step)

    def step_rows(self, epoch: int, index: int) -> np.ndarray:
        """The rows of one step, in the epoch's order."""
        if not 0 <= index < self.steps(epoch):
            raise IndexError(f"step {index} of {self.steps(epoch)}")
        if self._held is None or self._held[0] != epoch:
            self._held = (epoch, LongOrder(self.rows, self._purpose, self.seed, epoch))
        return self._held[1][index * self.rows_per_step : (index + 1) * self.rows_per_step]

    def shard(self, rank: int, world: int) -> Self:
        """The same steps as read by one of `world` processes, under the same fingerprint."""
        assert 0 <= rank < world, (rank, world)
        twin = copy.copy(self)
        twin._rank, twin._world = rank, world
        return twin

    def _own(self, lengths: np.ndarray) -> np.ndarray:
        """Which of a step's rows, of these lengths, this process reads: their places."""
        return deal(lengths, self._rank, self._world)

    def _mark(self, *parts: object) -> str:
        told = [RULE, self._purpose, self.rows, self.rows_per_step, self.max_tokens, self.seed, *parts]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

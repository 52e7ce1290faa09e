"""Allocates ranks to matrices within a total parameter budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compress.encoder.config.low_rank import break_even
from compress.errors import UserError


@dataclass(frozen=True)
class Candidate:
    """A matrix. energies: (min(out, in),) what each further rank takes off its error, falling.  felt: what each rank
    0, 1, 2 .. up to `max_rank` costs, where that was measured; None: its relative error."""

    out: int
    inputs: int
    energies: np.ndarray
    felt: np.ndarray | None = None

    @property
    def whole(self) -> int:
        return self.out * self.inputs

    @property
    def step(self) -> int:
        """Numbers that one rank takes."""
        return self.out + self.inputs

    @property
    def max_rank(self) -> int:
        """The largest rank that takes fewer numbers than the whole matrix."""
        return break_even(self.out, self.inputs)

    def errors(self) -> np.ndarray:
        """(most + 1,) share of the energy that is lost at rank 0, 1, 2 .."""
        total = float(self.energies.sum())
        if total <= 0:
            return np.zeros(self.max_rank + 1)
        left = np.concatenate([[total], total - np.cumsum(self.energies)])
        return np.clip(left[: self.max_rank + 1] / total, 0, 1)


Ranks = dict[str, int]
"""Matrix → rank; one that is not named stays whole."""


def count_least_numbers(candidates: Mapping[str, Candidate]) -> int:
    """Numbers with every matrix at its least: rank 1, or whole where a product takes more."""
    return sum(c.step if c.max_rank else c.whole for c in candidates.values())


def count_numbers(candidates: Mapping[str, Candidate], ranks: Mapping[str, int]) -> int:
    """Numbers with these ranks."""
    return sum(c.step * ranks[name] if name in ranks else c.whole for name, c in candidates.items())


def same_rank(candidates: Mapping[str, Candidate], rank: int) -> Ranks:
    """One rank for all; a matrix that would not get smaller stays whole. Raises UserError where none would."""
    found = {name: rank for name, c in candidates.items() if rank <= c.max_rank}
    if not found:
        most = max(c.max_rank for c in candidates.values())
        raise UserError(
            f"rank {rank} does not make any matrix smaller", where="rank", why="two low-rank factors would have "
            "more parameters",
            do=f"use at most {most}",
        )  # fmt: skip
    return found


def allocate_uniform(candidates: Mapping[str, Candidate], budget: int) -> Ranks:
    """Every matrix keeps the same share of its numbers, so that together they are at most `budget`."""
    share = budget / sum(c.whole for c in candidates.values())
    return {
        name: max(1, min(c.max_rank, int(share * c.whole / c.step))) for name, c in candidates.items() if c.max_rank
    }


def allocate_ranks(candidates: Mapping[str, Candidate], budget: int) -> Ranks:
    """The least sum of what ranks cost with at most `budget` numbers: every matrix pays the same price for a number.

    The price is found by bisection (a Lagrange multiplier); a whole matrix is the choice without an error. What is left
    of the budget then goes to the rank that takes off most, one at a time.
    """
    errors = {name: c.errors() if c.felt is None else c.felt for name, c in candidates.items()}
    largest = max(float(e.max()) for e in errors.values()) or 1.0
    errors = {name: e / largest for name, e in errors.items()}
    low, high = 0.0, 1.0
    for _ in range(200):
        price = (low + high) / 2
        if count_numbers(candidates, _at(candidates, errors, price)) > budget:
            low = price
        else:
            high = price
    ranks = _at(candidates, errors, high)
    left = budget - count_numbers(candidates, ranks)
    while True:
        gains = [
            ((errors[name][rank] - errors[name][rank + 1]) / candidates[name].step, name)
            for name, rank in ranks.items()
            if rank < candidates[name].max_rank and candidates[name].step <= left
        ]
        if not gains:
            return ranks
        _, best = max(gains)
        ranks[best] += 1
        left -= candidates[best].step


def _at(candidates: Mapping[str, Candidate], errors: Mapping[str, np.ndarray], price: float) -> Ranks:
    """The rank of least error + price * numbers, matrix by matrix."""
    found = {}
    for name, c in candidates.items():
        if not c.max_rank:
            continue
        costs = errors[name] + price * c.step * np.arange(c.max_rank + 1)
        rank = 1 + int(costs[1:].argmin())
        if costs[rank] < price * c.whole:
            found[name] = rank
    return found


def format_ranks(ranks: Mapping[str, int], names: Sequence[str]) -> list[str]:
    """The ranks of these matrices as a table shows them."""
    return [str(ranks[name]) if name in ranks else "whole" for name in names]

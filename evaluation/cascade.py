"""Cascades: a model answers the rows that it is sure of, and passes the others on to the next one.

The confidence is the probability of the most probable class (Jitkrittum et al., arXiv 2307.02764, on when that is
enough). `thresholds` chooses which models answer in turn, and from what confidence on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.agreement import softmax

LEVELS = 64
"""Thresholds that are tried for each model: quantiles of its confidence."""
LONGEST = 3
"""Models that answer in turn, at most: each further one is asked for fewer rows than the one before it."""


def compute_confidence(logits: NDArray) -> NDArray[np.float64]:
    """(N, C) logits → (N,) probability of the most probable class."""
    return softmax(np.asarray(logits, dtype=np.float64)).max(-1)


@dataclass(frozen=True)
class ScoredModels:
    """S models on the same N rows.

    confidence: (S, N) of its answers.  right: (S, N) bool.  answering, tokenizing: (S,) mean milliseconds of a row.
    tokenizers: (S,), equal for models with the same tokenizer, whose tokens are used again.
    """

    confidence: NDArray[np.float64]
    right: NDArray[np.bool_]
    answering: NDArray[np.float64]
    tokenizing: NDArray[np.float64]
    tokenizers: Sequence[object]

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """The same on some of the rows, (N,) bool."""
        return replace(self, confidence=self.confidence[:, rows], right=self.right[:, rows])

    def costs(self, chain: tuple[int, ...]) -> list[float]:
        """Milliseconds that each model of a cascade adds for a row that reaches it."""
        return [self.cost(model, chain[0]) for model in chain]

    def cost(self, model: int, first: int) -> float:
        """Milliseconds of a row that reaches a model in a cascade that begins with `first`."""
        again = model == first or self.tokenizers[model] != self.tokenizers[first]
        return float(self.answering[model] + again * self.tokenizing[model])

    def list_singles(self) -> list[tuple[int, ...]]:
        """Each model alone."""
        return [(place,) for place in range(len(self.answering))]

    def list_cascades(self) -> Iterator[tuple[int, ...]]:
        """Two to LONGEST models, each slower than the one before it."""
        order = np.argsort(self.answering + self.tokenizing, kind="stable").tolist()
        for length in range(2, LONGEST + 1):
            yield from itertools.combinations(order, length)


@dataclass(frozen=True)
class ScoredExits(ScoredModels):
    """Exits of one model in the order of their layers, and last the model itself without exits.

    answering: milliseconds of a row that the exit answers, all layers before it included.  overhead: of an exit that
    does not answer.
    """

    overhead: float = 0.0

    def costs(self, chain: tuple[int, ...]) -> list[float]:
        """Layers are computed once, whoever answers behind them."""
        found, done = [float(self.answering[chain[0]] + self.tokenizing[chain[0]])], self.answering[chain[0]]
        for exit in chain[1:]:
            found.append(max(0.0, float(self.answering[exit] - done)) + self.overhead)
            done = self.answering[exit]
        return found

    def list_singles(self) -> list[tuple[int, ...]]:
        """The model itself."""
        return [(len(self.answering) - 1,)]

    def list_cascades(self) -> Iterator[tuple[int, ...]]:
        """One exit or two, and the model itself."""
        last = len(self.answering) - 1
        for length in range(1, LONGEST):
            yield from ((*exits, last) for exits in itertools.combinations(range(last), length))


class CascadeTrial:
    """One chain of models at all levels of its thresholds at once: figures have an axis for each threshold.

    ms: expected mean of a row.  shares: of the rows that each model answers, along the first axis.  lost, gained: rows
    that only the reference, and only the cascade answers right.  confidence: mean of the answers.
    """

    def __init__(
        self,
        models: ScoredModels,
        chain: tuple[int, ...],
        reference: int,
        levels: Sequence[NDArray[np.float64]] | None = None,
    ) -> None:
        """levels: of each threshold; None: quantiles of the confidences."""
        self.chain = chain
        self.levels = [list_levels(models.confidence[m]) for m in chain[:-1]] if levels is None else levels
        sure = [models.confidence[m] > levels[:, None] for m, levels in zip(chain, self.levels, strict=False)]
        right, rows = models.right[reference], models.right.shape[1]
        self.shares = _mix(sure, list(np.eye(len(chain))[:, :, None] * np.ones(rows))) / rows
        values = [np.stack((right & ~models.right[m], models.right[m] & ~right, models.confidence[m])) for m in chain]
        lost, gained, confidence = _mix(sure, [np.asarray(x, dtype=np.float64) for x in values])
        self.lost, self.gained, self.confidence = np.rint(lost), np.rint(gained), confidence / rows
        reached = np.cumsum(self.shares[::-1], 0)[::-1]  # who is asked: whoever answers in the end, or passes it on
        self.ms = np.tensordot(models.costs(chain), reached, 1)

    def read_thresholds(self, place: Sequence[np.intp]) -> tuple[float, ...]:
        """At one place of the axes."""
        return tuple(float(levels[i]) for levels, i in zip(self.levels, place, strict=True))


def list_levels(confidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """(L,) ascending: thresholds at evenly spaced quantiles of the confidences of rows. Each is half-way between two of
    them, so that rounding in another runtime moves no row across it; the highest leaves some rows answered, where not
    all are alike."""
    known = np.unique(confidence)
    if len(known) == 1:
        return (known + 1) / 2
    shares = np.arange(1, LEVELS + 1) / (LEVELS + 1)
    places = np.searchsorted(known, np.unique(np.quantile(confidence, shares, method="lower")))
    places = places[places + 1 < len(known)]
    return (known[places] + known[places + 1]) / 2


def _mix(sure: Sequence[NDArray[np.bool_]], values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Sums over the rows of the value of whichever model answers: (K, L, ...), an axis of each threshold.

    sure: for each model but the last, (L, N) at each of its thresholds.  values: for each model (K, N).
    """
    if not sure:
        return values[0].sum(-1)
    first = sure[0].astype(np.float64)
    if len(sure) == 1:
        return values[0] @ first.T + values[1] @ (1 - first).T
    second, left = sure[1].astype(np.float64), 1 - first
    early = values[0] @ first.T + values[2] @ left.T
    gain = np.stack([left @ (second * (b - c)).T for b, c in zip(values[1], values[2], strict=True)])
    return early[:, :, None] + gain

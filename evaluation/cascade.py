"""Cascades: a model answers the rows that it is sure of, and passes the others on to the next one.

The confidence is the probability of the most probable class (Jitkrittum et al., arXiv 2307.02764, on when that is
enough). Which models answer in turn, and from what confidence on, is chosen on rows with known answers: the least
expected milliseconds of which the loss against a reference model is within a bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.agreement import softmax

LEVELS = 64
"""Thresholds that are tried for each model: quantiles of its confidence."""
LONGEST = 3
"""Models that answer in turn, at most: each further one is asked for fewer rows than the one before it."""
PAYS = 0.95
"""Of the milliseconds of the best single model, what a cascade may take: less of a gain is lost in the timing."""


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


@dataclass(frozen=True)
class CascadeChoice:
    """Models that answer in turn. models: their places, the first one first; of one it is a single model.
    thresholds: of all but the last; a row is answered where the confidence is above.  ms: expected mean of a row.
    shares: of the rows that each one answers.  loss: points of accuracy lost against the reference on these rows.
    bound: the loss and one standard error of it."""

    models: tuple[int, ...]
    thresholds: tuple[float, ...]
    ms: float
    shares: tuple[float, ...]
    loss: float
    bound: float


def choose_cascade(
    models: ScoredModels, reference: int, max_loss: float, accepted: Collection[int] = ()
) -> tuple[CascadeChoice, CascadeChoice]:
    """(the fastest single model, the fastest of all cascades and single models) within a bound on the loss.

    max_loss: points. The loss and one standard error of it must be within: of many thresholds, the one that came out
    just within by chance would often be beyond on other rows.  accepted: models that alone count as within, as the
    reference does.  A cascade is only the second where it takes at most PAYS of the time of the first.
    """
    single = _find_fastest(models.list_singles(), models, reference, max_loss, accepted)
    assert single is not None, "the reference is within"
    cascade = _find_fastest(models.list_cascades(), models, reference, max_loss, ())
    if cascade is None or cascade.ms > PAYS * single.ms:
        return single, single
    return single, cascade


def _find_fastest(
    chains: Sequence[tuple[int, ...]] | Iterator[tuple[int, ...]],
    models: ScoredModels,
    reference: int,
    max_loss: float,
    accepted: Collection[int],
) -> CascadeChoice | None:
    best: CascadeChoice | None = None
    for chain in chains:
        trial = _Trial(models, chain, reference)
        within = np.full(trial.ms.shape, len(chain) == 1 and chain[0] in (reference, *accepted))
        within |= trial.bound <= max_loss
        if within.any():
            place = np.unravel_index(np.where(within, trial.ms, np.inf).argmin(), within.shape)
            if best is None or trial.ms[place] < best.ms:
                best = trial.read(place)
    return best


class _Trial:
    """One chain of models at all levels of its thresholds at once: figures have an axis for each threshold."""

    def __init__(self, models: ScoredModels, chain: tuple[int, ...], reference: int) -> None:
        self.chain = chain
        self.levels = [_list_levels(models.confidence[m]) for m in chain[:-1]]
        sure = [models.confidence[m] > levels[:, None] for m, levels in zip(chain, self.levels, strict=False)]
        lost = [models.right[reference].astype(np.float64) - models.right[m] for m in chain]
        rows = models.right.shape[1]
        costs = models.costs(chain)
        self.shares = _mix(sure, list(np.eye(len(chain))[:, :, None] * np.ones(rows))) / rows
        self.loss = _mix(sure, [x[None] for x in lost])[0] / rows
        # One row more is counted as answered differently: among few rows, none may be so by chance.
        differing = (_mix(sure, [x[None] ** 2 for x in lost])[0] + 1) / rows
        self.bound = 100 * (self.loss + np.sqrt(np.maximum(differing - self.loss**2, 0) / rows))
        reached = np.cumsum(self.shares[::-1], 0)[::-1]  # who is asked: whoever answers in the end, or passes it on
        self.ms = np.tensordot(costs, reached, 1)

    def read(self, place: Sequence[np.intp]) -> CascadeChoice:
        """What is chosen at one place of the axes."""
        thresholds = [float(levels[i]) for levels, i in zip(self.levels, place, strict=True)]
        shares = [float(share[tuple(place)]) for share in self.shares]
        ms, loss, bound = (float(x[tuple(place)]) for x in (self.ms, 100 * self.loss, self.bound))
        return CascadeChoice(self.chain, tuple(thresholds), ms, tuple(shares), loss, bound)


def separate(threshold: float, confidence: NDArray[np.float64]) -> float:
    """A threshold that divides the same rows with room on both sides: half-way to the next larger confidence, so that
    rounding in another runtime moves no row across it."""
    above = confidence[confidence > threshold]
    return (threshold + (float(above.min()) if len(above) else 1.0)) / 2


def _list_levels(confidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """(L,) ascending: confidences of rows, at evenly spaced quantiles. The highest leaves some rows answered, where
    not all are alike."""
    shares = np.arange(1, LEVELS + 1) / (LEVELS + 1)
    return np.unique(np.quantile(confidence, shares, method="lower"))


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

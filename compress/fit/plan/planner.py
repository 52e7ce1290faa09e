"""Which parts of a model stay, and in how many bits: the least loss within milliseconds and megabytes, by dynamic
programming over both budgets at once.

Every layer is left out, or keeps so many heads and so many neurons, or is made together with its neighbours; the
embeddings are cut in one of several ways.
Costs and losses add up over the parts. Budgets are cut into cells; costs are rounded to the nearest cell, or are whole
numbers of cells, and then the result is exact. A plan's own sums are never rounded: one above a budget is not returned.
(The released search of Kwon et al., arXiv 2204.09656, takes a budget from what an earlier layer left, which is not
exact.)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

MS_CELLS, MB_CELLS = 320, 128
"""Cells of the budgets where both bind."""
CELLS = 4000
"""Cells of the one that binds alone."""
NEAR = 1e-9


@dataclass(frozen=True)
class Options:
    """Ways of making one part: (n,) milliseconds, megabytes and loss of each, not negative."""

    ms: np.ndarray
    mb: np.ndarray
    loss: np.ndarray

    @classmethod
    def none(cls) -> Options:
        """One way, which costs nothing: of a part that is not there."""
        return cls(np.zeros(1), np.zeros(1), np.zeros(1))

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def useful(self) -> list[int]:
        """Places of those that no other one equals or beats in all three; of equal ones the first."""
        rows = np.stack([self.loss, self.ms, self.mb], 1)
        kept: list[int] = []
        for place in np.lexsort((self.mb, self.ms, self.loss)).tolist():
            if not any(np.all(rows[other] <= rows[place] + 1e-15) for other in kept):
                kept.append(place)
        return sorted(kept)


@dataclass(frozen=True)
class Layer:
    """A layer's two parts. drop: what is lost without the layer; None: it cannot go."""

    attention: Options
    feed_forward: Options
    drop: float | None = None


@dataclass(frozen=True)
class Run:
    """Neighbouring layers that are made together. first: the place of the first of `count`.  options: ways of making
    all of them."""

    first: int
    count: int
    options: Options


TOGETHER = (-1, -1)
"""What a choice says of a layer that is made in a run."""


@dataclass(frozen=True)
class Shape:
    """What the layers lose, from the sum of their parts' losses: a line through measured points, from nothing up.

    sums, losses: (n,) ascending; beyond them the last slope goes on. No points: the sum itself. It only ever rises, so
    that the least sum is the least loss whatever it is.
    """

    sums: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()

    def __call__(self, total: float) -> float:
        return _along(total, self.sums, self.losses)

    def inverse(self, loss: float) -> float:
        """The sum that is lost so."""
        return _along(loss, self.losses, self.sums)

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]]) -> Shape:
        """Through these (sum, loss), as far as both rise."""
        sums, losses = [0.0], [0.0]
        for total, loss in sorted(points):
            if total > sums[-1] and loss > losses[-1]:
                sums.append(total)
                losses.append(loss)
        return cls(tuple(sums), tuple(losses)) if len(sums) > 1 else cls()


def _along(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    if not xs:
        return x
    at = min(max(1, int(np.searchsorted(xs, x))), len(xs) - 1)
    return ys[at - 1] + (x - xs[at - 1]) * (ys[at] - ys[at - 1]) / (xs[at] - xs[at - 1])


@dataclass(frozen=True)
class Problem:
    """What is chosen. ms, mb: of all that stays in any case.  shape: see there.  runs: that may take the place of
    layers one by one."""

    layers: Sequence[Layer]
    embedding: Options
    ms: float = 0.0
    mb: float = 0.0
    shape: Shape = Shape()
    runs: Sequence[Run] = ()

    def of(
        self, layers: Sequence[tuple[int, int] | None], embedding: int, runs: Sequence[tuple[int, int]] = ()
    ) -> Choice:
        """The costs and the loss of a choice, exactly. runs: which, and which of its options."""
        e = self.embedding
        ms, mb, loss = self.ms + e.ms[embedding], self.mb + e.mb[embedding], 0.0
        for layer, chosen in zip(self.layers, layers, strict=True):
            if chosen is None:
                assert layer.drop is not None
                loss += layer.drop
                continue
            if chosen == TOGETHER:
                continue
            for part, option in zip((layer.attention, layer.feed_forward), chosen, strict=True):
                ms, mb, loss = ms + part.ms[option], mb + part.mb[option], loss + part.loss[option]
        for run, option in runs:
            made = self.runs[run].options
            ms, mb, loss = ms + made.ms[option], mb + made.mb[option], loss + made.loss[option]
        loss = self.shape(float(loss)) + float(e.loss[embedding])
        return Choice(tuple(layers), embedding, float(ms), float(mb), loss, tuple(runs))

    @property
    def lower_bounds(self) -> tuple[float, float]:
        """Milliseconds and megabytes that no choice is below, each taken alone."""
        found = []
        for fixed, name in ((self.ms, "ms"), (self.mb, "mb")):
            # Of the layers so far, the least with none of them kept, and with one or more.
            least = [(0.0, math.inf)]
            for place, layer in enumerate(self.layers):
                none, some = least[-1]
                part = min(getattr(layer.attention, name)) + min(getattr(layer.feed_forward, name))
                without = (math.inf, math.inf) if layer.drop is None else (none, some)
                ends = [run for run in self.runs if run.first + run.count == place + 1]
                together = (min(least[run.first]) + min(getattr(run.options, name)) for run in ends)
                least.append((without[0], min(min(none, some) + part, without[1], *together)))
            found.append(float(fixed + least[-1][1] + min(getattr(self.embedding, name))))
        return found[0], found[1]

    @property
    def upper_bounds(self) -> tuple[float, float]:
        """Milliseconds and megabytes that no choice is above."""
        found = []
        for fixed, name in ((self.ms, "ms"), (self.mb, "mb")):
            parts = [max(getattr(x.attention, name)) + max(getattr(x.feed_forward, name)) for x in self.layers]
            for run in self.runs:
                alone = sum(parts[run.first : run.first + run.count])
                parts.append(max(0.0, max(getattr(run.options, name)) - alone))
            found.append(float(fixed + sum(parts) + max(getattr(self.embedding, name))))
        return found[0], found[1]


@dataclass(frozen=True)
class Choice:
    """layers: of each, which option of its attention and of its feed-forward part; None: the layer goes; TOGETHER: it
    is made in one of the `runs`, (which, which option), first to last.

    loss: of the layers by the problem's shape, and of the embeddings."""

    layers: tuple[tuple[int, int] | None, ...]
    embedding: int
    ms: float
    mb: float
    loss: float
    runs: tuple[tuple[int, int], ...] = ()

    @property
    def dropped(self) -> int:
        """Layers that go."""
        return sum(layer is None for layer in self.layers)


@dataclass
class _Axis:
    """A budget in cells. left: what is to be shared out.  width: of a cell; 0: the budget does not bind."""

    left: float
    width: float
    cells: int

    @classmethod
    def of(cls, left: float, costs: np.ndarray, cells: int) -> _Axis:
        if not math.isfinite(left):
            return cls(left, 0.0, 0)
        whole = costs[costs > 0]
        if len(whole) and np.all(whole == np.round(whole)):
            common = float(np.gcd.reduce(whole.astype(np.int64)))
            if left / common <= cells:
                return cls(left, common, int(left / common + NEAR))
        return cls(left, max(left / cells, 1e-12), cells)

    def steps(self, costs: np.ndarray) -> np.ndarray:
        """Cells of each cost; more than there are where it cannot fit."""
        if not self.width:
            return np.zeros(len(costs), dtype=np.int64)
        return np.minimum(np.rint(costs / self.width), self.cells + 1).astype(np.int64)

    def at(self, left: float) -> int:
        """The last cell within so much; below 0 where nothing is left."""
        if not self.width:
            return 0
        return -1 if left < -NEAR else min(self.cells, int(left / self.width + NEAR))


@dataclass
class _Part:
    """The options of a part that are of use: their places, cells and losses."""

    places: list[int]
    ms: list[int]
    mb: list[int]
    loss: list[float]


@dataclass
class _Step:
    """What was chosen at a layer for each (layers gone, cells, cells)."""

    attention: np.ndarray
    feed_forward: np.ndarray
    dropped: np.ndarray
    parts: tuple[_Part, _Part] = field(repr=False)
    run: np.ndarray
    """Which run ends here, -1 for none."""
    options: dict[int, np.ndarray] = field(repr=False)
    """Run → which of its options."""


class Planner:
    """The best plans within budgets; one table answers for these and for all smaller ones."""

    def __init__(self, problem: Problem, ms: float = math.inf, mb: float = math.inf) -> None:
        self.problem, self.ms, self.mb = problem, ms, mb
        most = problem.upper_bounds
        # Above what everything takes there is nothing to tell apart.
        room = [
            min(limit, whole) - fixed if math.isfinite(limit) else math.inf
            for limit, fixed, whole in ((ms, problem.ms, most[0]), (mb, problem.mb, most[1]))
        ]
        both = all(math.isfinite(x) for x in room)
        parts = [part for layer in problem.layers for part in (layer.attention, layer.feed_forward)]
        axes = []
        parts += [run.options for run in problem.runs]
        for left, name, cells in zip(room, ("ms", "mb"), (MS_CELLS, MB_CELLS), strict=True):
            costs = np.concatenate([getattr(part, name) for part in (*parts, problem.embedding)])
            axes.append(_Axis.of(max(0.0, left), costs, cells if both else CELLS))
        self._axes = (axes[0], axes[1])
        self._runs = [self._part(run.options) for run in problem.runs]
        self._steps: list[_Step] = []
        self._best = self._solved()

    # --- the table --------------------------------------------------------------------------------------------

    def _solved(self) -> np.ndarray:
        """(layers gone + 1, cells, cells) the least loss of all layers."""
        first, second = self._axes
        droppable = sum(layer.drop is not None for layer in self.problem.layers)
        gone = min(droppable, len(self.problem.layers) - 1)
        best = np.full((gone + 1, first.cells + 1, second.cells + 1), np.inf)
        best[0] = 0.0
        before = [best]
        for place, layer in enumerate(self.problem.layers):
            parts = (self._part(layer.attention), self._part(layer.feed_forward))
            kept, attention = _convolved(best, parts[0])
            kept, feed_forward = _convolved(kept, parts[1])
            dropped = np.zeros(best.shape, dtype=bool)
            if layer.drop is not None:
                without = np.full_like(best, np.inf)
                without[1:] = best[:-1] + layer.drop
                dropped = without < kept
                kept = np.where(dropped, without, kept)
            run, options = np.full(best.shape, -1, dtype=np.int16), {}
            for number, ending in enumerate(self.problem.runs):
                if ending.first + ending.count != place + 1:
                    continue
                together, options[number] = _convolved(before[ending.first], self._runs[number])
                better = together < kept
                kept, run[better] = np.where(better, together, kept), number
            self._steps.append(_Step(attention, feed_forward, dropped, parts, run, options))
            best = kept
            before.append(best)
        return best

    def _part(self, options: Options) -> _Part:
        places = options.useful
        first, second = self._axes
        ms, mb = first.steps(options.ms[places]), second.steps(options.mb[places])
        return _Part(places, ms.tolist(), mb.tolist(), options.loss[places].tolist())

    # --- plans ------------------------------------------------------------------------------------------------

    def best(self, count: int, *, ms: float | None = None, mb: float | None = None) -> list[Choice]:
        """At most so many plans, the least loss first, each the best of its kind: a kind is how many layers go and how
        the embeddings are cut. Plans that differ by a neuron would say the same again.

        ms, mb: budgets, at most those that the planner was made for.
        """
        return list(self._each(count, self.ms if ms is None else ms, self.mb if mb is None else mb))

    def choose_diverse(self, count: int, *, ms: float | None = None, mb: float | None = None) -> list[Choice]:
        """As `best`, but first the best of each number of layers that go, as far as half of `count`: losses of whole
        layers add up least well, so that what is tried should differ in them."""
        every = self.best(10_000, ms=ms, mb=mb)
        firsts = {choice.dropped: choice for choice in reversed(every)}
        ahead = sorted(firsts.values(), key=lambda c: c.loss)[: max(1, -(-count // 2))]
        chosen = [*ahead, *(c for c in every if c not in ahead)][:count]
        return sorted(chosen, key=lambda c: c.loss)

    def _each(self, count: int, ms: float, mb: float) -> Iterator[Choice]:
        e, waiting = self.problem.embedding, []
        for embedding in e.useful:
            at = (
                self._axes[0].at(ms - self.problem.ms - e.ms[embedding]),
                self._axes[1].at(mb - self.problem.mb - e.mb[embedding]),
            )
            if min(at) < 0:
                continue
            for gone in range(len(self._best)):
                found = self._within(gone, at, embedding, ms, mb)
                if found is not None:
                    waiting.append((found.loss, len(waiting), found))
        heapq.heapify(waiting)
        while waiting and count:
            yield heapq.heappop(waiting)[2]
            count -= 1

    def _within(self, gone: int, at: tuple[int, int], embedding: int, ms: float, mb: float) -> Choice | None:
        """The best at these cells, or a few below them where rounding took a plan over a budget."""
        i, j = at
        while i >= 0 and j >= 0:
            if not np.isfinite(self._best[gone, i, j]):
                return None
            layers, runs = self._traced(gone, i, j)
            made = self.problem.of(layers, embedding, runs)
            over = (made.ms > ms + NEAR, made.mb > mb + NEAR)
            if not any(over):
                return made
            i, j = i - over[0], j - over[1]
        return None

    def _traced(self, gone: int, i: int, j: int) -> tuple[list[tuple[int, int] | None], list[tuple[int, int]]]:
        """Layers and runs, first to last."""
        found: list[tuple[int, int] | None] = []
        runs: list[tuple[int, int]] = []
        while len(found) < len(self._steps):
            step = self._steps[-1 - len(found)]
            run = int(step.run[gone, i, j])
            if run >= 0:
                part, option = self._runs[run], int(step.options[run][gone, i, j])
                runs.append((run, part.places[option]))
                found += [TOGETHER] * self.problem.runs[run].count
                i, j = i - part.ms[option], j - part.mb[option]
                continue
            if step.dropped[gone, i, j]:
                found.append(None)
                gone -= 1
                continue
            chosen = [0, 0]
            for place, choices in ((1, step.feed_forward), (0, step.attention)):
                part, option = step.parts[place], int(choices[gone, i, j])
                chosen[place] = part.places[option]
                i, j = i - part.ms[option], j - part.mb[option]
            found.append((chosen[0], chosen[1]))
        return found[::-1], runs[::-1]


def _convolved(best: np.ndarray, part: _Part) -> tuple[np.ndarray, np.ndarray]:
    """The least loss with one option of the part, and which."""
    new, choice = np.full_like(best, np.inf), np.zeros(best.shape, dtype=np.int16)
    rows, columns = best.shape[1:]
    for option, (a, b, loss) in enumerate(zip(part.ms, part.mb, part.loss, strict=True)):
        if a >= rows or b >= columns:
            continue
        with_it = best[:, : rows - a, : columns - b] + loss
        target = new[:, a:, b:]
        better = with_it < target
        np.copyto(target, with_it, where=better)
        choice[:, a:, b:][better] = option
    return new, choice

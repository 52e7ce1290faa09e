"""Result table of a criterion comparison: ranks, intervals to the best and to the random baseline."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compress.report.rows import title
from evaluation.quality.intervals import Interval
from evaluation.quality.runs import DrawnFigures, difference_over_runs

COIN = "random"  # the criterion that the others must beat

Layers = tuple[int, ...]
Weighted = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""(R, rows) numbers of draws of each row → (R,) figures."""


@dataclass(frozen=True)
class Entry:
    """A criterion at one depth. layers: what it chose, for each seed.  points: of the main metric lost on validation
    before recovery.  regret: less the points of the best set, None where not all were tried.  rank: of its set among
    `sets` by loss on validation, mean over seeds, 1 the best.  scores: of the main metric on the measured rows, for
    each seed, after recovery.  regret_after, rank_after: the same of these scores, where all sets were recovered; mean
    over seeds.  behind: against the best criterion of the depth.  coin: against layers drawn at random.
    """

    criterion: str
    depth: int
    layers: tuple[Layers, ...]
    points: float
    regret: float | None = None
    rank: float | None = None
    sets: int | None = None
    scores: tuple[float, ...] = ()
    regret_after: float | None = None
    rank_after: float | None = None
    behind: Interval | None = None
    coin: Interval | None = None

    @property
    def mean(self) -> float:
        """Of the scores after recovery, or minus the points lost where there was none."""
        return statistics.mean(self.scores) if self.scores else -self.points / 100

    @property
    def beats(self) -> float | None:
        """Share of the other sets of this size that do worse on validation before recovery: the chance to beat a coin
        that falls on another set. None where not all were tried, or there is one alone."""
        if self.rank is None or not self.sets or self.sets < 2:
            return None
        return (self.sets - self.rank) / (self.sets - 1)


def rank_entries(
    here: Sequence[Entry], figures: Sequence[list[Weighted]], coin: Sequence[Weighted | DrawnFigures] | None, rows: int
) -> list[Entry]:
    """The entries of one depth, the best first, with paired intervals wide enough for as many comparisons as there are
    (Bonferroni). figures: of each, a figure a seed.  coin: of layers drawn at random.  rows: that are resampled."""
    order = sorted(range(len(here)), key=lambda i: (-here[i].mean, here[i].criterion))
    level = 1 - 0.05 / max(1, len(here) - 1)
    found = []
    for place in order:
        behind = difference_over_runs(rows, figures[place], figures[order[0]], level=level)
        above = None if coin is None else difference_over_runs(rows, figures[place], coin, level=level)
        found.append(dataclasses.replace(here[place], behind=behind, coin=above))
    return found


def format_conclusions(entries: Sequence[Entry]) -> list[str]:
    """For each depth the winner where the intervals show one, else who is not measurably worse, and who is better than
    a coin; then the chance of each criterion to beat one, over all depths."""
    found = []
    for depth in dict.fromkeys(e.depth for e in entries):
        here = [e for e in entries if e.depth == depth]
        best = here[0]
        same = [e for e in here[1:] if e.layers == best.layers]
        ties = [e for e in here[1:] if e not in same and e.behind is not None and e.behind.high >= 0]
        if ties:
            names = ", ".join(e.criterion for e in (*same, *ties))
            found.append(f"{depth} layers: no winner; not measurably worse than {best.criterion}: {names}")
        elif same:
            names = ", ".join(e.criterion for e in (best, *same))
            found.append(
                f"{depth} layers: {names} chose the same layers and are best; the intervals of all others exclude 0"
            )
        else:
            found.append(f"{depth} layers: {best.criterion} is best; the intervals of all others exclude 0")
        # What a coin drew is no better than a coin, however well it fell.
        better = [e.criterion for e in here if e.criterion != COIN and e.coin is not None and e.coin.low > 0]
        if any(e.coin is not None for e in here):
            found.append(f"{depth} layers: measurably better than the random baseline: {', '.join(better) or 'none'}")
    return [*found, *_chances(entries)]


def _chances(entries: Sequence[Entry]) -> list[str]:
    """One line: how often each criterion's set is better than a random other one."""
    chances: dict[str, list[float]] = {}
    for entry in entries:
        if entry.beats is not None:
            chances.setdefault(entry.criterion, []).append(entry.beats)
    if not chances:
        return []
    means = sorted(((statistics.mean(found), name) for name, found in chances.items()), key=lambda m: (-m[0], m[1]))
    told = ", ".join(f"{name} {100 * mean:.0f} %" for mean, name in means)
    return [f"share of layer sets that are worse before recovery training, mean over depths (random: 50 %): {told}"]


def table(entries: Sequence[Entry], metric: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows): a row for each criterion at each depth; columns that nobody fills are left out."""
    name = title(metric)
    columns = (
        "layers", "criterion", "keeps", f"{name} lost by the cut, validation", "regret", "rank of its set",
        f"{name} x 100", "regret after recovery", "rank after recovery", "behind the best", "against random baseline",
    )  # fmt: skip
    rows = [_row(entry) for entry in entries]
    filled = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    return tuple(columns[i] for i in filled), [tuple(row[i] for i in filled) for row in rows]


def _row(e: Entry) -> tuple[str, ...]:
    sets = list(dict.fromkeys(e.layers))
    shown = format_layers(sets[0]) if len(sets) == 1 else f"{len(sets)} sets, one per seed"
    spread = f" (sd {100 * statistics.stdev(e.scores):.2f})" if len(e.scores) > 1 else ""
    return (
        str(e.depth),
        e.criterion,
        shown,
        f"{e.points:.2f}",
        "" if e.regret is None else f"{e.regret:.2f}",
        "" if e.rank is None else f"{e.rank:.3g} of {e.sets}",
        f"{100 * e.mean:.2f}{spread}" if e.scores else "",
        "" if e.regret_after is None else f"{e.regret_after:.2f}",
        "" if e.rank_after is None else f"{e.rank_after:.3g} of {e.sets}",
        "" if e.behind is None else _points(e.behind),
        "" if e.coin is None else _points(e.coin),
    )


def as_json(e: Entry) -> dict[str, Any]:
    """What `--json` prints of it."""
    values = dataclasses.asdict(e)
    return values | {"layers": [list(kept) for kept in e.layers], "beats": e.beats}


def _points(d: Interval) -> str:
    return f"{100 * d.value:+.2f} [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"


def format_layers(layers: Sequence[int]) -> str:
    """A set of layers as people read it."""
    return " ".join(map(str, layers))

"""The thresholds of a cascade, chosen so that its loss is within a bound with a stated confidence: learn then test."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evaluation.cascade import CascadeTrial, ScoredModels
from evaluation.learn_then_test import measure_loss, prove_in_order

STEPS = 48
"""Cascades that are proposed: the one that loses least at each of so many speeds."""
PAYS = 0.95
"""Of the milliseconds of the best single model, what a cascade may take: less of a gain is lost in the timing."""


EQUAL = 1e-9
"""Milliseconds: sums of the same costs in another order."""


@dataclass(frozen=True)
class CascadeChoice:
    """Models that answer in turn. models: their places, the first one first; of one it is a single model.
    thresholds: of all but the last; a row is answered where the confidence is above.  ms: expected mean of a row.
    shares: of the rows that each one answers.  loss: points of accuracy lost against the reference on the rows that
    test.  p_value: of a loss beyond the bound; 0 of a model that needs no test."""

    models: tuple[int, ...]
    thresholds: tuple[float, ...]
    ms: float
    shares: tuple[float, ...]
    loss: float
    p_value: float


@dataclass(frozen=True)
class Selection:
    """single: the fastest model within the bound.  choice: the fastest of all cascades and single models; the same as
    `single` where no cascade takes at most PAYS of its time.  tested: proposals that were tested.  rows: that
    tested."""

    single: CascadeChoice
    choice: CascadeChoice
    tested: int
    rows: int


@dataclass(frozen=True)
class _Proposal:
    """models, thresholds: as of a choice."""

    models: tuple[int, ...]
    thresholds: tuple[float, ...] = ()


def choose_cascade(
    models: ScoredModels,
    reference: int,
    max_loss: float,
    proposing: NDArray[np.bool_],
    *,
    confidence: float = 0.9,
    accepted: Collection[int] = (),
) -> Selection:
    """The fastest cascade whose loss against the reference is within `max_loss` points, with this confidence (0 to 1).

    proposing: (N,) the rows that propose; on the others no figure of `models` may have been fitted, and no model
    chosen, or the confidence does not hold.  accepted: models that alone count as within without a test, as the
    reference does.
    """
    free = {reference, *accepted}
    testing = models.take(~proposing)
    proposals = _propose(models.take(proposing), reference, max_loss)
    known = {(model,) for model in free}
    asked = (p for p in proposals if p.models not in known)
    passed, tested = prove_in_order((_evaluate(testing, p, reference, max_loss) for p in asked), confidence)
    singles = [replace(_evaluate(testing, _Proposal((m,)), reference, max_loss), p_value=0.0) for m in free]
    rows = testing.right.shape[1]
    single = min([*singles, *(one for one in passed if len(one.models) == 1)], key=lambda one: one.ms)
    best = min((one for one in passed if len(one.models) > 1), key=lambda one: one.ms, default=single)
    return Selection(single, best if best.ms <= PAYS * single.ms else single, len(tested), rows)


def _propose(models: ScoredModels, reference: int, max_loss: float) -> Sequence[_Proposal]:
    """From the slowest to the fastest: at each of STEPS speeds, of the cascades and models that are at least as fast,
    the one that loses the fewest rows, and of these the one whose answers are surest. Models that alone may be within
    the bound are proposed too.

    Rows that it gains are not counted: they hide by chance, among few rows, how many are lost. Rows lost only grow as
    thresholds fall.
    """
    trials = [CascadeTrial(models, chain, reference) for chain in (*models.list_singles(), *models.list_cascades())]
    ms, lost, sure = (
        np.concatenate([np.ravel(getattr(trial, name)) for trial in trials]) for name in ("ms", "lost", "confidence")
    )
    starts = np.cumsum([0, *(trial.ms.size for trial in trials)])
    alone = {trial.chain[0]: place for place, trial in enumerate(trials) if len(trial.chain) == 1}  # one place each
    safest = np.lexsort((ms, -sure, lost))
    levels = np.linspace(ms[alone[reference]], ms.min(), STEPS)
    places = {int(safest[np.argmax(ms[safest] <= level + EQUAL)]) for level in levels}
    places |= {place for place in alone.values() if 100 * lost[place] <= max_loss * models.right.shape[1]}
    found = []
    for place in sorted(places, key=lambda place: (-ms[place], place)):
        owner = int(np.searchsorted(starts, place, "right")) - 1
        at = np.unravel_index(place - int(starts[owner]), trials[owner].ms.shape)
        found.append(_Proposal(trials[owner].chain, trials[owner].read_thresholds(at)))
    return found


def _evaluate(models: ScoredModels, proposal: _Proposal, reference: int, max_loss: float) -> CascadeChoice:
    """A proposal on the rows that test."""
    levels = [np.array([threshold]) for threshold in proposal.thresholds]
    trial, rows = CascadeTrial(models, proposal.models, reference, levels), models.right.shape[1]
    loss, p_value = measure_loss(int(trial.lost.item()), int(trial.gained.item()), rows, max_loss)
    shares = tuple(map(float, trial.shares.ravel()))
    return CascadeChoice(proposal.models, proposal.thresholds, float(trial.ms.item()), shares, loss, p_value)

"""Which plan is made next: under budgets the best of different kinds, aimed lower where a made one came out above what
was planned; under a bound on quality, halves between what held and what did not; for a family, along both budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from compress.fit.make.evaluator import Evaluation, share_timings
from compress.fit.plan.planner import Choice, Planner
from compress.fit.plan.plans import Plan, Space
from compress.fit.request.bounds import Bounds
from evaluation.frontier import frontier

MARGIN = 0.96
"""Of a budget of milliseconds, what plans aim at: a model that is timed twice takes a little more once."""
MORE = 3
"""Plans beyond those that were asked for, until one is within the budgets: each is aimed by what the others took."""
SLOWEST = 1.5
SKIPPED = 20
FAMILY = (0.85, 0.7, 0.55, 0.42, 0.32, 0.24)
"""Of what the model in 8 bits takes, the budgets of a family's members."""


@dataclass
class Search:
    """spaces: what may be done, in one of these.  bounds: what must hold.  whole: the model in 8 bits, all else kept.
    count: plans."""

    spaces: Sequence[Space]
    bounds: Bounds
    whole: Plan
    count: int
    family: bool = False
    tried: list[Evaluation] = field(default_factory=list)
    skipped: dict[str, float] = field(default_factory=dict)
    """Plans that were not made since their file would be too large → megabytes above what was planned."""

    def __post_init__(self) -> None:
        self.problems = [space.problem() for space in self.spaces]
        self.lower_bounds = tuple(min(p.lower_bounds[axis] for p in self.problems) for axis in (0, 1))
        """Milliseconds and megabytes that no plan can be below."""
        self._planners: dict[tuple[float, float], list[Planner]] = {}
        self._low, self._high, self._asked = 0.0, 1.0, math.nan

    @property
    def slowdown(self) -> float:
        """Measured milliseconds over planned ones: the most of the plans that were made, or of the model in 8 bits
        before there are any; below 1 where the machine got faster meanwhile. A busy one is not believed all."""
        ratios = {j.plan.key: j.timing.ms / j.plan.ms for j in share_timings(self.tried) if j.plan.ms > 0}
        whole = ratios.pop(self.whole.key, 1.0)
        return min(SLOWEST, max(1 / SLOWEST, max(ratios.values(), default=whole)))

    def limits(self) -> tuple[float, float]:
        """Budgets that plans are made for."""
        ms = math.inf if self.bounds.max_ms is None else MARGIN * self.bounds.max_ms / self.slowdown
        mb = math.inf if self.bounds.max_mb is None else self.bounds.max_mb - max([0.0, *self.skipped.values()])
        return ms, mb

    def skip(self, plan: Plan, mb: float) -> bool:
        """Whether a plan's file, which takes so much, is over the budget; the next plans are aimed lower then."""
        if self.bounds.max_mb is None or mb <= self.bounds.max_mb or plan.key == self.whole.key:
            return False
        self.skipped[plan.key] = mb - plan.mb
        return True

    def forecast(self) -> list[Plan]:
        """The first plans, before any is made."""
        if self.family:
            return self._family()
        if self.bounds.objective != "quality":
            ms, mb = self._scaled(0.5)
            return self._best(self.count, ms, mb)
        return self._diverse(self.count, *self.limits())

    def next(self) -> Plan | None:
        """The plan to make now; None where there is none left."""
        # The model in 8 bits alone is among the tried ones.
        most = self.count + (0 if self._within else MORE)
        if len(self.tried) > most or len(self.skipped) > SKIPPED:
            return None
        if self.family:
            return self._new(self._family())
        if self.bounds.objective != "quality":
            return self._halved()
        return self._new(self._diverse(2 * self.count, *self.limits()))

    @property
    def _within(self) -> bool:
        """Whether a model came out within the budgets, as one should: times of plans are estimates."""
        return any(not self.bounds.over(j.mb, j.timing.ms, None) for j in share_timings(self.tried))

    def _new(self, plans: Sequence[Plan]) -> Plan | None:
        known = {*(j.plan.key for j in self.tried), *self.skipped}
        return next((plan for plan in plans if plan.key not in known), None)

    def _best(self, count: int, ms: float, mb: float) -> list[Plan]:
        """The plans of least loss within budgets, at most so many."""
        return self._of_all(count, ms, mb, lambda planner: planner.best(count))

    def _diverse(self, count: int, ms: float, mb: float) -> list[Plan]:
        """The same, different in the number of layers that go."""
        return self._of_all(count, ms, mb, lambda planner: planner.choose_diverse(count))

    def _of_all(self, count: int, ms: float, mb: float, choose: Callable[[Planner], Sequence[Choice]]) -> list[Plan]:
        """Of every space, the least loss first; of plans with as many layers and the same tables, the best."""
        key = (ms, mb)
        if key not in self._planners:
            self._planners[key] = [Planner(problem, *key) for problem in self.problems]
        found = [
            space.plan(choice)
            for space, planner in zip(self.spaces, self._planners[key], strict=True)
            for choice in choose(planner)
        ]
        kinds: dict[tuple[int, str, int, int], Plan] = {}
        for plan in sorted(found, key=lambda plan: plan.loss):
            kinds.setdefault((len(plan.layers), plan.vocabulary, plan.word, plan.rank), plan)
        return list(kinds.values())[:count]

    # --- a bound on quality alone -----------------------------------------------------------------------------

    def _scaled(self, part: float) -> tuple[float, float]:
        """Budgets at so much of the way from the least possible to the model in 8 bits, within the others."""
        ms, mb = self.limits()
        least = self.lower_bounds
        if self.bounds.objective == "fastest":
            return min(ms, least[0] + part * (self.whole.ms - least[0])), mb
        return ms, min(mb, least[1] + part * (self.whole.mb - least[1]))

    def _halved(self) -> Plan | None:
        """Between the smallest that held and the largest that did not, as far as that is known."""
        if self.tried and not math.isnan(self._asked):
            held = not self.bounds.over(0.0, 0.0, self.tried[-1].drop)
            self._low, self._high = (self._low, self._asked) if held else (self._asked, self._high)
        while self._high - self._low > 0.02:
            self._asked = (self._low + self._high) / 2
            plans = self._best(1, *self._scaled(self._asked))
            plan = self._new(plans)
            if plan is not None:
                return plan
            if not plans:
                self._low = self._asked
                continue
            return None
        return None

    # --- a family ---------------------------------------------------------------------------------------------

    def _family(self) -> list[Plan]:
        """Along milliseconds and along megabytes, in turn, the widest first."""
        ms, mb = self.limits()
        least, found = self.lower_bounds, []
        for part in FAMILY:
            for wanted in (
                (min(ms, max(least[0], part * self.whole.ms)), mb),
                (ms, min(mb, max(least[1], part * self.whole.mb))),
            ):
                found += self._best(1, *wanted)
        return list({plan.key: plan for plan in found}.values())[: self.count]


def find_front(judged: Sequence[Evaluation]) -> list[Evaluation]:
    """Those that no other beats in megabytes, milliseconds and quality, as far as the paired intervals of quality tell;
    the largest first."""
    able = [j for j in share_timings(judged) if math.isfinite(j.value + j.drop_low + j.drop_high)]
    verdicts = frontier([j.candidate for j in able])
    left = [j for j, verdict in zip(able, verdicts, strict=True) if verdict.by is None]
    return sorted(left, key=lambda j: -j.mb)


def choose_result(
    judged: Sequence[Evaluation], bounds: Bounds, best: Callable[[Sequence[Evaluation]], Evaluation]
) -> tuple[Evaluation, bool]:
    """The one to leave, and whether it meets the bounds on validation; else the closest that was measured."""
    judged = share_timings(judged)
    met = [j for j in judged if not bounds.over(j.mb, j.timing.ms, j.drop)]
    if not met:
        return min(judged, key=lambda j: (bounds.excess(j.mb, j.timing.ms, j.drop), j.apart)), False
    if bounds.objective == "quality":
        return best(met), True
    key = (lambda j: j.mb) if bounds.objective == "smallest" else (lambda j: j.timing.ms)
    return min(met, key=key), True

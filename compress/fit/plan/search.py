"""Which plan is made next: under budgets the best of different kinds, aimed lower where a made one came out above what
was planned; under a bound on quality, halves between what held and what did not; for a family, along both budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from compress.fit.make.evaluator import Evaluation, share_timings
from compress.fit.plan.planner import Choice, Planner, Problem
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
    """space: what may be done.  bounds: what must hold.  whole: the model in 8 bits, all else kept.  count: plans."""

    space: Space
    bounds: Bounds
    whole: Plan
    count: int
    family: bool = False
    tried: list[Evaluation] = field(default_factory=list)
    skipped: dict[str, float] = field(default_factory=dict)
    """Plans that were not made since their file would be too large → megabytes above what was planned."""

    def __post_init__(self) -> None:
        self.problem: Problem = self.space.problem()
        self._planners: dict[tuple[float, float], Planner] = {}
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
            return self._plans(self._planner(ms, mb).best(self.count))
        return self._plans(self._planner(*self.limits()).choose_diverse(self.count))

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
        return self._new(self._plans(self._planner(*self.limits()).choose_diverse(2 * self.count)))

    @property
    def _within(self) -> bool:
        """Whether a model came out within the budgets, as one should: times of plans are estimates."""
        return any(not self.bounds.over(j.mb, j.timing.ms, None) for j in share_timings(self.tried))

    def _new(self, plans: Sequence[Plan]) -> Plan | None:
        known = {*(j.plan.key for j in self.tried), *self.skipped}
        return next((plan for plan in plans if plan.key not in known), None)

    def _plans(self, choices: Sequence[Choice]) -> list[Plan]:
        return [self.space.plan(choice) for choice in choices]

    def _planner(self, ms: float, mb: float) -> Planner:
        key = (ms, mb)
        if key not in self._planners:
            self._planners[key] = Planner(self.problem, *key)
        return self._planners[key]

    # --- a bound on quality alone -----------------------------------------------------------------------------

    def _scaled(self, part: float) -> tuple[float, float]:
        """Budgets at so much of the way from the least possible to the model in 8 bits, within the others."""
        ms, mb = self.limits()
        least = self.problem.lower_bounds
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
            plan = self._new(self._plans(self._planner(*self._scaled(self._asked)).best(1)))
            if plan is not None:
                return plan
            if not self._planner(*self._scaled(self._asked)).best(1):
                self._low = self._asked
                continue
            return None
        return None

    # --- a family ---------------------------------------------------------------------------------------------

    def _family(self) -> list[Plan]:
        """Along milliseconds and along megabytes, in turn, the widest first."""
        ms, mb = self.limits()
        least, found = self.problem.lower_bounds, []
        for part in FAMILY:
            for wanted in (
                (min(ms, max(least[0], part * self.whole.ms)), mb),
                (ms, min(mb, max(least[1], part * self.whole.mb))),
            ):
                found += self._plans(self._planner(*wanted).best(1))
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

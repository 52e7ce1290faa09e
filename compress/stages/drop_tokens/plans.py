"""Which share of the tokens goes on after each layer: plans from the mildest to the boldest, each with the least
expected loss for the milliseconds that it saves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compress.encoder.config.token_dropping import ALL

GRID = (ALL, 75, 50, 35, 25, 15)
"""Percentages that are tried."""
PRICES = 60
"""Of a unit of loss in milliseconds, as many as give plans."""

Plan = tuple[int, ...]
"""Percentage of the tokens that go on after each layer."""


@dataclass(frozen=True)
class MeasuredDrops:
    """losses: layer → percentage of GRID → loss where that layer alone drops tokens; 0 for all of them.  layer: of a
    model's layers, percentage → milliseconds of one that reads so many tokens.  choosing: milliseconds of one choice of
    tokens."""

    losses: Sequence[Mapping[int, float]]
    layer: Mapping[int, float]
    choosing: float

    def expect_ms(self, plan: Plan) -> float:
        """Of a text, with this plan: attention reads what the layer before left, the rest what this one leaves."""
        steps = itertools.pairwise((ALL, *plan))
        return sum(self._expect_step(before, after) for before, after in steps)

    def _expect_step(self, before: int, after: int) -> float:
        return (self.layer[before] + self.layer[after]) / 2 + (self.choosing if after < before else 0.0)

    def find_plan(self, price: float) -> Plan:
        """The plan with the least milliseconds plus `price` times the loss; losses of layers are taken to add up."""
        best: dict[int, tuple[float, Plan]] = {ALL: (0.0, ())}
        for place, losses in enumerate(self.losses):
            last = place == len(self.losses) - 1  # nothing reads what it would leave
            found: dict[int, tuple[float, Plan]] = {}
            for before, (total, plan) in best.items():
                for after in [before] if last else [p for p in GRID if p <= before]:
                    more = max(0.0, losses[after] - losses[before])
                    cost = total + self._expect_step(before, after) + price * more
                    if after not in found or cost < found[after][0]:
                        found[after] = (cost, (*plan, after))
            best = found
        return min(best.values())[1]

    def list_plans(self, most: int) -> list[Plan]:
        """At most so many different plans that drop tokens, the mildest first."""
        largest = max((max(losses.values()) for losses in self.losses), default=0.0) or 1.0
        scale = self.expect_ms((ALL,) * len(self.losses)) / largest
        found = dict.fromkeys(self.find_plan(scale * price) for price in np.logspace(4, -3, PRICES))
        plans = sorted((p for p in found if min(p) < ALL), key=lambda plan: -self.expect_ms(plan))
        places = np.unique(np.linspace(0, len(plans) - 1, min(most, len(plans))).round().astype(int))
        return [plans[place] for place in places]

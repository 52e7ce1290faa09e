"""What earlier fits in the store say of a plan that nobody made yet: what plans of its planned loss lost once they were
made and judged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from compress.tracking.reading import Reader, StoredRun

FEWEST, MOST = 9, 19
"""Earlier plans that an interval needs, and that it is of at most: from the least to the most of n that are alike, a
further one lies in between in (n - 1) of (n + 1) cases, whatever their distribution; of 9 in 80 %, of 19 in 90 %."""
ALIKE = 3.0
"""Times by which planned losses may differ."""
LEAST = 1e-3
"""Nats below which losses are not told apart."""
PARENT = "compress.fit_parent"
"""The tag of a judged plan's run with the fingerprint of the model that was fitted."""


@dataclass(frozen=True)
class PastPlan:
    """A plan that was made without training. loss: nats, as planned.  drop: points of the main metric that it lost."""

    parent: str
    loss: float
    drop: float


@dataclass(frozen=True)
class ExpectedLoss:
    """Points that a plan may lose. value: the median of `plans` earlier ones.  chance: that the interval holds, were
    the plan one more of their kind.  of: whose they are, this model's or any model's."""

    value: float
    low: float
    high: float
    plans: int
    of: Literal["this model", "all models"]

    @property
    def chance(self) -> float:
        return (self.plans - 1) / (self.plans + 1)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "chance": self.chance}


class Experience:
    """Earlier plans. parent: fingerprint of the model whose plans are foretold."""

    def __init__(self, made: Iterable[PastPlan], parent: str) -> None:
        self.made, self.parent = list(dict.fromkeys(made)), parent  # the same plan in two fits is one

    @classmethod
    def of(cls, reader: Reader, metric: str, parent: str) -> Experience:
        """Those in a store that were judged by this metric. Raises UserError where it does not open."""
        return cls(
            [made for run in reader.list_tagged_runs(PARENT) if (made := _made(run, metric)) is not None], parent
        )

    def estimate_loss(self, loss: float) -> ExpectedLoss | None:
        """Of a plan with such a loss; None where too few were made. Those of this model count first."""
        own = self._alike([m for m in self.made if m.parent == self.parent], loss)
        every = self._alike(self.made, loss)
        found, of = (own, "this model") if len(own) >= FEWEST else (every, "all models")
        if len(found) < FEWEST:
            return None
        drops = [m.drop for m in found[:MOST]]
        return ExpectedLoss(float(np.median(drops)), min(drops), max(drops), len(drops), of)

    def count_similar(self, loss: float) -> int:
        """How many plans of any model have such a loss."""
        return len(self._alike(self.made, loss))

    @staticmethod
    def _alike(made: Sequence[PastPlan], loss: float) -> list[PastPlan]:
        """The nearest first."""
        near = [(abs(math.log(max(m.loss, LEAST) / max(loss, LEAST))), m) for m in made]
        return [m for apart, m in sorted(near, key=lambda pair: pair[0]) if apart <= math.log(ALIKE)]


def _made(run: StoredRun, metric: str) -> PastPlan | None:
    values = run.metrics
    if f"validation/{metric}" not in values or values.get("fit/trained_steps", 0.0) > 0:
        return None
    if "fit/planned_loss" not in values or "validation/drop_points" not in values:
        return None
    return PastPlan(run.tags[PARENT], values["fit/planned_loss"], values["validation/drop_points"])

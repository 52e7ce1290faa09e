"""Measures how quantization changes a model's outputs, and which modules must fall back to float."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compress.contracts import Batch
from compress.encoder.integers.fake_quantized import list_quantized_modules, set_mode
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError
from compress.stages.shared.divergence import OF_CLASSES, DistanceName, ReferenceAnswers, name_distance, task_answers


@dataclass(frozen=True)
class Damage:
    """module alone → mean distance of the quantized model's answers from the float model's: KL in nats, of a score the
    squared difference, of vectors 1 minus the cosine.

    together: with every module quantized.  distance: which of these it is.
    """

    alone: dict[str, float]
    together: float
    distance: DistanceName = OF_CLASSES

    @property
    def worst_first(self) -> list[str]:
        """Names, the most damaging first."""
        return sorted(self.alone, key=lambda name: -self.alone[name])


class Scan:
    """Compares the answers of a quantized model's modes with those of the float model, on a few batches."""

    def __init__(self, model: Model, batches: Sequence[Batch], stop: Callable[[], None]) -> None:
        self.model, self.stop = model, stop
        set_mode(model, "float")
        self.distance = name_distance(model)
        self.reference = ReferenceAnswers(model, batches, task_answers(model))
        set_mode(model, "quantized")

    def damage(self, told: Callable[[int], None] = lambda done: None) -> Damage:
        """Of each module alone, and of all. told: of how many modules are done."""
        alone = {}
        try:
            for done, name in enumerate(list_quantized_modules(self.model), 1):
                self.stop()
                set_mode(self.model, lambda other, name=name: "quantized" if other == name else "float")
                alone[name] = self.reference.divergence(self.model)
                told(done)
        finally:
            set_mode(self.model, "quantized")
        return Damage(alone, self.reference.divergence(self.model), self.distance)


@dataclass(frozen=True)
class FallbackTrial:
    """A number of modules gone back to float, and the points that the rest costs."""

    count: int
    points: float
    met: bool


def fewest_back(
    order: Sequence[str], cost: Callable[[frozenset[str]], float], limit: float
) -> tuple[frozenset[str], list[FallbackTrial]]:
    """(modules that go back, all tried): as few of `order`, the first ones first, as bring the cost to `limit` points.

    cost: modules in float → points lost. Counts are doubled, then halved between: cost is taken to fall with them.
    Raises UserError where it holds for no quantized module at all.
    """
    tried: list[FallbackTrial] = []

    def met(count: int) -> bool:
        points = cost(frozenset(order[:count]))
        tried.append(FallbackTrial(count, points, points <= limit))
        return tried[-1].met

    if met(0):
        return frozenset(), tried
    low, high = 0, 1
    while high < len(order) and not met(high):
        low, high = high, min(2 * high, len(order))
    if high >= len(order):
        if low + 1 >= len(order) or not met(len(order) - 1):
            least = min(t.points for t in tried)
            raise UserError(
                f"no number of fallback modules keeps the loss within {limit:g} points",
                where="max_drop",
                why=f"the smallest measured loss is {least:.2f}",
                do="allow more, or use another scheme",
                code=ExitCode.REFUSED,
            )
        high = len(order) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return frozenset(order[:high]), tried

"""Shared by criteria: choosing by a score per layer while keeping protected layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from compress.contracts import LayerChoice
from compress.errors import UserError


def remove_lowest(
    scores: Mapping[int, float], keep: int, protected: frozenset[int], *, score: str, form: str = "{:.4f}"
) -> LayerChoice:
    """The layers with the lowest scores go, of equal ones the later.

    score: what the numbers are, in words.  form: of one of them. Raises UserError for a score that is not finite.
    """
    undefined = [layer for layer, value in scores.items() if not math.isfinite(value)]
    if undefined:
        raise UserError(
            "the layers cannot be compared", why=f"layer {undefined[0]}: {score} is {scores[undefined[0]]}",
            do="check the model: compress evaluate FOLDER --data DATA",
        )  # fmt: skip
    free = sorted((layer for layer in scores if layer not in protected), key=lambda layer: (scores[layer], -layer))
    gone = free[: len(scores) - keep]
    reasons = {
        layer: f"{score} {form.format(scores[layer])}, the {ordinal(place + 1)} lowest"
        for place, layer in enumerate(gone)
    }
    return LayerChoice(list_remaining(len(scores), gone), reasons, scores, score=score, form=form)


def choose_fixed(keep: Sequence[int], depth: int, protected: frozenset[int], why: str) -> LayerChoice:
    """The layers of a rule; a protected one that it leaves out takes the place of the nearest that is not."""
    kept = set(keep)
    for layer in sorted(protected - kept):
        free = kept - protected
        kept.remove(min(free, key=lambda other: (abs(other - layer), other)))
        kept.add(layer)
    return LayerChoice(tuple(sorted(kept)), {i: why for i in range(depth) if i not in kept})


def list_remaining(depth: int, gone: Sequence[int]) -> tuple[int, ...]:
    """The layers that stay when these go."""
    return tuple(layer for layer in range(depth) if layer not in gone)


def find_layer_before(kept: Sequence[int], layer: int) -> int | None:
    """The last kept layer before this one; None: the embeddings."""
    return max((other for other in kept if other < layer), default=None)


def format_layer(layer: int | None) -> str:
    """A layer's output as people read it; None: the embeddings'."""
    return "the embeddings" if layer is None else f"layer {layer}"


def ordinal(number: int) -> str:
    """1 → 1st."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def make_undefined_error(name: str, why: str) -> UserError:
    """No layer can be chosen."""
    return UserError(f"criterion {name} cannot choose", why=why, do="use another criterion")

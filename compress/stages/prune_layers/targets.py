"""Number of layers to keep: a fixed number, the fewest within a quality loss, or the most within a latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compress.contracts import LayerChoice
from compress.errors import ExitCode, UserError
from compress.stages.prune_layers.spec import Spec

Choose = Callable[[int], LayerChoice]
"""How many layers stay → which."""


@dataclass(frozen=True)
class DepthTrial:
    """A depth that was tried on the way to a target. value: points lost, or milliseconds."""

    choice: LayerChoice
    value: float
    met: bool


def kept_count(spec: Spec, depth: int) -> int | None:
    """How many layers of `depth` the spec keeps, None where that is only found by measuring.

    Raises UserError for none, all or more than there are.
    """
    if depth < 2:
        raise UserError("a model with one layer cannot lose one", where="prune_layers")
    if spec.layers is not None:
        return _checked(len(spec.layers), depth, "layers")
    wanted = spec.count_kept(depth)
    if wanted is None:
        return None
    keep = _checked(wanted, depth, "keep" if spec.drop is None else "drop")
    return keep if spec.max_layers_per_stage is None else max(keep, depth - spec.max_layers_per_stage)


def _checked(keep: int, depth: int, where: str) -> int:
    if 1 <= keep < depth:
        return keep
    what = f"cannot keep {keep} of {depth} layers" if keep > 0 else f"all {depth} layers would be dropped"
    allowed = f"drop 1..{depth - 1}" if where == "drop" else f"keep 1..{depth - 1}"
    raise UserError(what, where=where, why=f"the model has layers 0..{depth - 1}", do=f"use {allowed}")


def deepest_within(limit: float, depth: int, least: int, choose: Choose, lost: Callable[[Sequence[int]], float]):
    """(choice, all tried): the fewest layers that lose at most `limit` points, one less at a time until one is too few.

    least: layers that must stay.  lost: layers kept → points lost. Raises UserError when the first removal costs more.
    """
    tried: list[DepthTrial] = []
    for keep in range(depth - 1, least - 1, -1):
        choice = choose(keep)
        value = lost(choice.keep)
        tried.append(DepthTrial(choice, value, value <= limit))
        if not tried[-1].met:
            break
    met = [t for t in tried if t.met]
    if not met:
        raise UserError(
            f"no layer can be dropped within {limit:g} points",
            where="max_drop",
            why=f"the cheapest removal, of layer {_gone(tried[0].choice, depth)}, costs {tried[0].value:.2f}"
            if tried
            else "all layers are protected",
            do="allow more, or set --keep and restore quality with recovery training",
            code=ExitCode.REFUSED,
        )
    return met[-1].choice, tried


def shallowest_within(
    limit: float,
    depth: int,
    least: int,
    choose: Choose,
    times: Callable[[Sequence[Sequence[int]]], Sequence[float]],
):
    """(choice, all tried): the most layers whose median latency is at most `limit` milliseconds.

    times: sets of layers → milliseconds of each, timed in turn. The choice is timed once more, alone, and gives way to
    the next smaller where it is too slow then. Raises UserError with the best possible when nothing is fast enough.
    """
    choices = [choose(keep) for keep in range(depth - 1, least - 1, -1)]
    if not choices:
        raise UserError("all layers are protected", where="protect", do="protect fewer")
    measured = times([choice.keep for choice in choices])
    tried = [DepthTrial(c, t, t <= limit) for c, t in zip(choices, measured, strict=True)]
    for candidate in (t for t in tried if t.met):
        (again,) = times([candidate.choice.keep])
        if again <= limit:
            return candidate.choice, tried
        tried.append(DepthTrial(candidate.choice, again, False))
    best = min(tried, key=lambda t: t.value)
    raise UserError(
        f"no model with {least} or more layers runs in {limit:g} ms or less here",
        where="target_latency",
        why=f"the fastest takes {best.value:.2f} ms, with {len(best.choice.keep)} layers",
        do="allow more time, shorten evaluation.latency.length, or make the layers smaller",
        code=ExitCode.REFUSED,
    )


def _gone(choice: LayerChoice, depth: int) -> str:
    return ", ".join(str(i) for i in range(depth) if i not in choice.keep)


def find_protected_layers(spec: Spec, depth: int, first_is_special: bool) -> frozenset[int]:
    """Layers that must stay. Raises UserError for one that is not there."""
    if spec.protect is None:
        return frozenset({0} if first_is_special else ())
    for layer in spec.protect:
        if layer >= depth:
            raise UserError(f"layer {layer} does not exist", where="protect", why=f"allowed: 0..{depth - 1}")
    return frozenset(spec.protect)


def build_trial_rows(tried: Sequence[DepthTrial], unit: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows) of what was tried."""
    rows = [
        (str(len(t.choice.keep)), ", ".join(map(str, t.choice.keep)), f"{t.value:.2f}", "yes" if t.met else "no")
        for t in tried
    ]
    return ("layers", "which", unit, "within the target"), rows


def check_fits(keep: int, protected: frozenset[int]) -> None:
    """Raise UserError when more layers are protected than stay."""
    if len(protected) > keep:
        listed = ", ".join(map(str, sorted(protected)))
        raise UserError(
            f"{len(protected)} layers are protected but only {keep} would be kept",
            where="protect",
            why=f"protected: {listed}",
        )

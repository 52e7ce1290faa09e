"""Targets of width pruning: heads and neurons per layer, head width and hidden size."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from compress.contracts import WidthScores
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.reshape.cut import units
from compress.errors import ExitCode, UserError
from compress.stages.prune_width import search
from compress.stages.prune_width.costs import Costs, Counts, uses
from compress.stages.prune_width.spec import Spec

BUDGET_NAMES = ("target_params", "target_flops", "target_latency")
FLAGS = {"keep_heads": "heads", "intermediate_size": "feed-forward neurons"}


def narrow_config(spec: Spec, config: EncoderConfig, origin: EncoderConfig) -> EncoderConfig:
    """`config` with the hidden states and the heads as wide as the spec asks on this part of its way; numbers of heads
    and neurons as they are.

    config: of the model that is cut.  origin: of the one before the first step. Raises UserError for a hidden size that
    cannot be, or is not smaller.
    """
    hidden = config.hidden
    if spec.hidden is not None:
        if spec.hidden >= origin.hidden:
            raise UserError(
                f"hidden {spec.hidden} is not smaller than the model's",
                where="hidden",
                why=f"the model has {origin.hidden}",
                do=f"use less than {origin.hidden}",
            )
        hidden = _between(origin.hidden, spec.hidden, spec.schedule)
    layers = []
    for index, (shape, first) in enumerate(zip(config.layers, origin.layers, strict=False)):
        width = shape.head_width
        if spec.head_width is not None:
            if spec.head_width > first.head_width:
                raise UserError(
                    f"head_width {spec.head_width} exceeds the model's",
                    where=f"layer {index}",
                    why=f"its heads are {first.head_width} wide",
                )
            width = min(width, _between(first.head_width, spec.head_width, spec.schedule))
            if config.positions == "rotary" and width % 2:
                width += 1
        layers.append(dataclasses.replace(shape, head_width=width))
    embedding = config.embedding
    fixed = config.positions == "sinusoidal" and hidden != config.hidden and embedding is None
    return dataclasses.replace(
        config,
        hidden=hidden,
        layers=tuple(layers),
        positions="learned" if fixed else config.positions,  # a fixed table cannot lose channels along with the words
    )


def stock_heads(spec: Spec, config: EncoderConfig, heads: Sequence[int]) -> int | None:
    """The width of heads that makes `hidden` a stock shape, where only it was asked for and the model had one; None:
    heads keep their width. Raises UserError where hidden cannot be divided among the heads."""
    alike = all(s.attention_width == config.hidden for s in config.layers)
    if spec.hidden is None or spec.head_width is not None or spec.uneven or not alike or len(set(heads)) != 1:
        return None
    hidden, count = spec.hidden, heads[0]
    if config.layers[0].head_width * count == hidden:
        return None  # heads were taken out as well, and those that stay fit
    step = 2 * count if config.positions == "rotary" else count
    if hidden % step:
        near = sorted({max(step, hidden // step * step), (hidden // step + 1) * step})
        raise UserError(
            f"hidden {hidden} is not divisible by {count} heads",
            where="hidden",
            why="a stock shape has heads of hidden / heads channels" + (", an even number" if step > count else ""),
            do=f"use hidden {' or '.join(map(str, near))}, or set head_width",
        )
    return hidden // count


def _between(whole: int, target: int, way: float) -> int:
    return round(whole - way * (whole - target))


# --- numbers of heads and neurons -------------------------------------------------------------------------------


def asks_counts(spec: Spec) -> bool:
    """Whether heads or neurons go at all."""
    return any(getattr(spec, name) is not None for name in (*FLAGS, "ratio", *BUDGET_NAMES))


def check_counts(spec: Spec, config: EncoderConfig) -> None:
    """What can be told before anything is read. Raises UserError naming the key."""
    for key, what in FLAGS.items():
        value = getattr(spec, key)
        if value is None:
            continue
        part, name = ("attention", "heads") if key == "keep_heads" else ("feed_forward", "feed_forward")
        every = _per_layer(value, config.depth, key)
        for layer, (count, shape) in enumerate(zip(every, config.layers, strict=True)):
            most = getattr(shape, name)
            if count > most:
                raise UserError(
                    f"cannot keep {count} of {most} {what}",
                    where=f"{key}, layer {layer}",
                    do=f"use 1..{most}",
                )
            if count < 1:
                do = f"use 1..{most}; compress prune-layers drops whole layers"
                raise UserError(f"all {most} {what} would be removed", where=f"{key}, layer {layer}", do=do)
        for unit in units(config, part):
            if len({every[layer] for layer in unit}) > 1:
                raise UserError(
                    f"layers {', '.join(map(str, unit))} share their matrices and cannot differ",
                    where=key,
                    do="give them the same number",
                )
        if list(every) == [getattr(shape, name) for shape in config.layers] and spec.schedule == 1:
            raise UserError(f"all {what} would be kept", where=key, do="keep fewer")


def _per_layer(value: int | Sequence[int], depth: int, key: str) -> list[int]:
    if isinstance(value, int):
        return [value] * depth
    if len(value) != depth:
        raise UserError(
            f"{len(value)} numbers for {depth} layers", where=key, do="give one for all layers, or one per layer"
        )
    return list(value)


def kept_counts(spec: Spec, config: EncoderConfig, origin: EncoderConfig, scores: WidthScores) -> Counts:
    """What `keep_heads` and `intermediate_size` ask for; a kind that is not named stays whole."""
    whole, first = Counts.of(config), Counts.of(origin)
    made: list[tuple[int, ...]] = []
    for key, part, now, start, tables in (
        ("keep_heads", "attention", whole.heads, first.heads, scores.heads),
        ("intermediate_size", "feed_forward", whole.neurons, first.neurons, scores.neurons),
    ):
        value = getattr(spec, key)
        if value is None:
            made.append(now)
            continue
        every = _per_layer(value, config.depth, key)
        wanted = [every[unit[0]] for unit in units(config, part)]
        wanted = [min(n, max(1, _between(s, w, spec.schedule))) for n, s, w in zip(now, start, wanted, strict=True)]
        if spec.uneven and isinstance(value, int):
            weights = uses(config, part)
            wanted = search.allocate_one_kind(tables, weights, sum(n * w for n, w in zip(wanted, weights, strict=True)))
        made.append(tuple(wanted))
    return Counts(*made)


def shares(spec: Spec, config: EncoderConfig, origin: EncoderConfig) -> tuple[float, float]:
    """Of heads and of neurons, what `ratio` or `keep_…` leave of those that there are."""
    whole = Counts.of(config)
    if spec.ratio is not None:
        left = search.scale_counts(Counts.of(origin), 1 - spec.schedule * spec.ratio)
    else:
        flat = WidthScores([torch.ones(n) for n in whole.heads], [torch.ones(n) for n in whole.neurons])
        left = kept_counts(spec, config, origin, flat)
    return sum(left.heads) / sum(whole.heads), sum(left.neurons) / sum(whole.neurons)


def ratio_counts(
    spec: Spec, config: EncoderConfig, origin: EncoderConfig, scores: WidthScores, costs: Costs, in_loss: bool
) -> Counts:
    """What `ratio` asks for. costs: in operations."""
    assert spec.ratio is not None
    left = 1 - spec.schedule * spec.ratio
    whole, target = Counts.of(config), search.scale_counts(Counts.of(origin), left)
    target = Counts(
        tuple(map(min, target.heads, whole.heads)),
        tuple(map(min, target.neurons, whole.neurons)),
    )
    if not spec.uneven:
        return target
    return _ranked(config, scores, costs, costs.of(target), target, in_loss)


def budget_counts(
    spec: Spec, config: EncoderConfig, scores: WidthScores, costs: Costs, budget: float, key: str, in_loss: bool
) -> Counts:
    """The counts that lose least and cost at most `budget`. Raises UserError below the least that can be."""
    if budget >= costs.maximum:
        raise UserError(
            f"{format_cost(budget, costs.unit)} is not below the model's cost",
            where=key,
            why=f"the model has {format_cost(costs.maximum, costs.unit)}",
            do="set a smaller target",
        )
    if budget < costs.minimum:
        raise UserError(
            f"{format_cost(budget, costs.unit)} cannot be reached by width pruning",
            where=key,
            why=f"with one head and one neuron in each layer {format_cost(costs.minimum, costs.unit)} remain",
            do=f"set {format_cost(costs.minimum, costs.unit)} or more, make hidden smaller, or drop layers first",
            code=ExitCode.REFUSED,
        )
    whole = Counts.of(config)
    if not in_loss:
        even = search.allocate_same_share(whole, costs, budget)
        return _ranked(config, scores, costs, budget, even, in_loss) if spec.uneven else even
    return (
        search.allocate_nonuniform(scores, costs, budget)
        if spec.uneven
        else search.allocate_uniform(scores, costs, budget)
    )


def _ranked(
    config: EncoderConfig, scores: WidthScores, costs: Costs, budget: float, even: Counts, in_loss: bool
) -> Counts:
    """Uneven counts. even: what all layers would keep alike; scores of one kind alone keep as many of each kind."""
    if in_loss:
        return search.allocate_nonuniform(scores, costs, budget)
    made = []
    for part, tables, counts in (
        ("attention", scores.heads, even.heads),
        ("feed_forward", scores.neurons, even.neurons),
    ):
        weights = uses(config, part)
        made.append(
            tuple(search.allocate_one_kind(tables, weights, sum(n * w for n, w in zip(counts, weights, strict=True))))
        )
    return Counts(*made)


def budget_of(value: float, whole: float, way: float) -> float:
    """What is left at most on this part of the way. value: up to 1 a share of `whole`, else the number itself."""
    target = value * whole if value <= 1 else value
    return whole - way * (whole - target)


def format_cost(value: float, unit: str) -> str:
    """A cost as people read it."""
    if unit == "ms":
        return f"{value:.3g} ms"
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{name} {unit}"
    return f"{value:.0f} {unit}"

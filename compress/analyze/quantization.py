"""`compress analyze --quantization`: tables and plots of what quantizing would do to a model's matrices."""

from __future__ import annotations

import math
import re

from compress.analyze.rounding import PERCENT, SIGMAS, WAYS, Input, Rounding, measure_rounding
from compress.analyze.subject import Analysis, Subject
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.examples import Examples
from compress.predict.predictor import MAX_TOKENS
from compress.report.plots import heatmap, line_chart

SHOWN = 12
"""Rows of a table in the terminal; the files have all."""
DIMENSIONS = 16
"""Outlier dimensions of one input that are listed."""
FEW = 0.01
"""Of the tokens: a hidden dimension that lies far out in fewer is not drawn."""
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")


def measure_quantization(one: Subject, examples: Examples, found: Analysis) -> None:
    """Ranges and outlier dimensions of every matrix' input, and the error of every product rounded to int8."""
    made = measure_rounding(one.loaded.model, lambda: evaluation_batches(examples, MAX_TOKENS), str(one.loaded.path))
    _ranges(made, found)
    _outliers(made, found)
    _errors(made, found)


def _ranges(made: Rounding, found: Analysis) -> None:
    columns = (
        "input of", "min", "max", f"{100 - PERCENT:.2f} %", f"{PERCENT:g} %", "std",
        "outlier dimensions", "most frequent, share of tokens",
    )  # fmt: skip
    rows = []
    for given in made.inputs:
        low, high = given.seen.percentile(PERCENT)
        outliers = given.outliers()
        most = f"{outliers[0][0]}, {100 * outliers[0][1]:.1f} %" if outliers else ""
        figures = (f"{v:.3g}" for v in (given.seen.low, given.seen.high, low, high, given.deviation))
        rows.append((_input(given), *figures, f"{len(outliers)} of {_width(given)}", most))
    tokens = made.inputs[0].tokens
    found.tables["quantization-ranges"] = (f"inputs of the matrices, {tokens:,} tokens", (columns, rows))
    curves: dict[str, list[tuple[float, float, float, float]]] = {}
    for given in made.inputs:
        if match := _LAYER.fullmatch(given.readers[0]):
            usual = max(map(abs, given.seen.percentile(PERCENT)))
            most = max(abs(given.seen.low), abs(given.seen.high))
            curves.setdefault(match[2], []).append((float(match[1]), usual, usual, most))
    if curves:
        title = f"|input| of the matrices: line = percentile {PERCENT:g}, band = up to the maximum"
        found.plots["quantization-ranges"] = line_chart(title, "layer", "|x|", curves)


def _outliers(made: Rounding, found: Analysis) -> None:
    columns = ("input of", "dimension", "tokens", "max |x| in standard deviations")
    title = f"dimensions beyond {SIGMAS} standard deviations"
    rows: list[tuple[str, ...]] = []
    shares: dict[int, dict[str, float]] = {}
    hidden = {_place(given): given for given in made.inputs if _hidden(given)}
    for given in made.inputs:
        for dimension, share, widest in given.outliers()[:DIMENSIONS]:
            rows.append((_input(given), str(dimension), f"{100 * share:.2f} %", f"{widest:.1f}"))
            if _hidden(given) and share >= FEW:
                shares.setdefault(dimension, {})[_place(given)] = share
    found.tables["quantization-outliers"] = (title, (columns, rows))
    found.shown["quantization-outliers"] = 0
    found.values["quantization/outlier_hidden_dimensions"] = len(shares)
    if not shares:
        found.lines.append(f"no hidden dimension exceeds {SIGMAS} standard deviations in {100 * FEW:g} % of the tokens")
        return
    ranked = sorted(shares, key=lambda d: -sum(shares[d].values()))[:DIMENSIONS]
    values = [[shares[d].get(name, 0.0) for d in ranked] for name in hidden]
    plot = heatmap(f"hidden {title}, share of tokens", [*hidden], [*map(str, ranked)], values, margin=130)
    found.plots["quantization-outliers"] = plot
    first = shares[ranked[0]]
    found.lines.append(
        f"hidden dimension {ranked[0]} exceeds {SIGMAS} standard deviations in up to "
        f"{100 * max(first.values()):.1f} % of the tokens, in {len(first)} of {len(hidden)} inputs"
    )


def _errors(made: Rounding, found: Analysis) -> None:
    columns = ("matrix", "SQNR of the weights, dB", "int8 weights", "+ input per token", "+ input static")
    order = sorted(made.products, key=lambda name: -made.products[name].error(WAYS[-1]))
    rows = [
        (_short(name), f"{p.sqnr:.1f}", *(f"{100 * p.error(way):.2f} %" for way in WAYS))
        for name, p in ((name, made.products[name]) for name in order)
    ]
    found.tables["quantization-errors"] = ("relative error of each matrix product", (columns, rows))
    found.shown["quantization-errors"] = SHOWN
    for way in WAYS:
        _, worst = made.worst(way)
        key = way.replace("-", "_")
        found.values[f"quantization/error_{key}_worst_pct"] = 100 * worst
        mean = sum(p.error(way) for p in made.products.values()) / len(made.products)
        found.values[f"quantization/error_{key}_mean_pct"] = 100 * mean
        _draw(way, made, found)
    (static, much), (token, little) = made.worst("static"), made.worst("per-token")
    found.lines.append(
        f"int8 products: the largest error is {100 * much:.1f} % of the output with static ranges ({_short(static)}), "
        f"{100 * little:.1f} % with per-token scales ({_short(token)})"
    )


def _draw(way: str, made: Rounding, found: Analysis) -> None:
    """Layers against their matrices, in percent; all ways on the scale of the worst, so that colours compare."""
    places = {(int(m[1]), m[2]): p.error(way) for name, p in made.products.items() if (m := _LAYER.fullmatch(name))}
    if not places:
        return
    layers, parts = sorted({layer for layer, _ in places}), list(dict.fromkeys(part for _, part in places))
    values = [[100 * places.get((layer, part), math.nan) for part in parts] for layer in layers]
    names = [part.rpartition(".")[2] for part in parts]
    darkest = 100 * max(made.worst(each)[1] for each in WAYS)
    title = f"error of each matrix product, %: {way}"
    found.plots[f"quantization-errors-{way}"] = heatmap(title, [*map(str, layers)], names, values, darkest=darkest)


def _input(given: Input) -> str:
    """`3.attention.query, key, value`."""
    first, *more = map(_short, given.readers)
    return ", ".join([first, *(name.rpartition(".")[2] for name in more)])


def _short(name: str) -> str:
    return name.removeprefix("encoder.layers.").removeprefix("encoder.")


def _hidden(given: Input) -> bool:
    """Whether its dimensions are those of the hidden states, alike in every layer."""
    return given.readers[0].endswith((".attention.query", ".feed_forward.up"))


def _place(given: Input) -> str:
    """`3.attention`."""
    return _short(given.readers[0]).rpartition(".")[0]


def _width(given: Input) -> int:
    assert given.widest is not None
    return len(given.widest)

"""Plots as SVG text: small, exact, readable in every browser and in MLflow's artifact view, in any script."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from compress.errors import columns, printable

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 48
FONT = "system-ui, 'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # told apart also by the colour-blind
CHARACTER = 7  # pixels of a column of text in the legend
DASH = 22  # and of the line before it

Curve = Sequence[tuple[float, float, float, float]]
"""(x, y, low, high) of each point, x rising."""


def line_chart(title: str, x_label: str, y_label: str, curves: Mapping[str, Curve]) -> str:
    """Curves with bands from low to high over a common frame, their names below it; names and labels may be in any
    script.

    Raises ValueError when no curve has a point, or a number is not finite.
    """
    points = [point for curve in curves.values() for point in curve]
    if not points or not all(math.isfinite(value) for point in points for value in point):
        raise ValueError("a chart needs points, all of them finite")
    x_ticks = ticks(min(p[0] for p in points), max(p[0] for p in points))
    y_ticks = ticks(min(p[2] for p in points), max(p[3] for p in points))

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    places = _legend([_short(name) for name in curves])
    height = max(place[1] for place in places) + 12
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' font-family="{FONT}" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(WIDTH / 2, 18, title, "middle", ' font-size="14"'),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label, "middle"),
        f'<g transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.1f}) rotate(-90)">'
        + _text(0, 0, y_label, "middle")
        + "</g>",
    ]
    for tick in y_ticks:
        out.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(_text(LEFT - 6, y(tick) + 4, f"{tick:g}", "end"))
    out += [_text(x(tick), HEIGHT - BOTTOM + 16, f"{tick:g}", "middle") for tick in x_ticks]
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        band = [f"{x(p[0]):.1f},{y(p[3]):.1f}" for p in curve] + [f"{x(p[0]):.1f},{y(p[2]):.1f}" for p in curve[::-1]]
        line = [f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in curve]
        out.append(f'<polygon points="{" ".join(band)}" fill="{colour}" fill-opacity="0.15"/>')
        out.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="3" fill="{colour}"/>' for p in line]
        left, place = places[number]
        out.append(f'<path d="M{left} {place}h{DASH}" stroke="{colour}" stroke-width="2"/>')
        out.append(_text(left + DASH + 6, place + 4, _short(name), "start"))
    return "\n".join([*out, "</svg>"]) + "\n"


def _legend(names: Sequence[str]) -> list[tuple[int, int]]:
    """(left end, middle) of each entry: in rows below the frame, as many in a row as there is room for."""
    found: list[tuple[int, int]] = []
    left, place = LEFT, HEIGHT + 8
    for name in names:
        width = DASH + 6 + CHARACTER * columns(name) + 18
        if found and left + width > WIDTH:
            left, place = LEFT, place + 18
        found.append((left, place))
        left += width
    return found


CELL, MARGIN = 44, 80  # pixels of a heatmap's cells, and of the names beside them
LIGHT, DARK = (247, 251, 255), (8, 48, 107)


def heatmap(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    darkest: float = 1.0,
    margin: int = MARGIN,
) -> str:
    """A grid of figures, 0 or less light, `darkest` or more dark, each written in its cell; not a number: an empty one.

    values: (rows, columns).  margin: pixels of the rows' names.
    Raises ValueError when values are not as many as the names.
    """
    if not values or len(values) != len(rows) or any(len(line) != len(columns) for line in values):
        raise ValueError("a heatmap needs a figure for each pair of names")
    width, height = max(WIDTH // 2, margin + CELL * len(columns) + RIGHT), TOP + 24 + CELL * len(rows) + RIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="{FONT}" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(width / 2, 18, title, "middle", ' font-size="14"'),
    ]
    top = TOP + 24
    for number, name in enumerate(columns):
        out.append(_text(margin + CELL * (number + 0.5), top - 8, printable(name, 6), "middle"))
    for i, (name, line) in enumerate(zip(rows, values, strict=True)):
        out.append(_text(margin - 8, top + CELL * (i + 0.5) + 4, printable(name, margin // 8), "end"))
        for j, value in enumerate(line):
            x, y = margin + CELL * j, top + CELL * i
            if not math.isfinite(value):
                out.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="none" stroke="#ddd"/>')
                continue
            share = min(1.0, max(0.0, value / (darkest or 1.0)))
            colour = "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(LIGHT, DARK, strict=True))
            out.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{colour}"/>')
            ink = ' fill="white"' if share > 0.5 else ""
            out.append(_text(x + CELL / 2, y + CELL / 2 + 4, f"{value:.2f}", "middle", ink))
    return "\n".join([*out, "</svg>"]) + "\n"


@dataclass(frozen=True)
class Level:
    """A figure with the ends of its interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


PANEL, GAP, STEP = 120, 48, 112  # pixels of a waterfall's panels, between them, and of a step
BETTER, WORSE, WHOLE = "#009e73", "#d55e00", "#7f8c99"


def waterfall_chart(
    title: str, names: Sequence[str], panels: Mapping[str, Sequence[Level | None]], more_is_better: Collection[str] = ()
) -> str:
    """What each step adds and takes away: for every panel the first and the last level as whole bars, between them what
    changed from one step to the next.

    names: of the steps.  panels: label → a level for each step, None where it has none.  more_is_better: labels of the
    panels in which rising is good; their bars do not begin at 0. Raises ValueError when a panel has another number of
    levels than there are names, or a number is not finite.
    """
    if not names or any(len(levels) != len(names) for levels in panels.values()):
        raise ValueError("a waterfall needs a level, or None, for each step")
    width, height = LEFT + STEP * (len(names) + 1) + RIGHT, TOP + (PANEL + GAP) * len(panels) + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="{FONT}" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(width / 2, 18, title, "middle", ' font-size="14"'),
    ]
    for number, (label, levels) in enumerate(panels.items()):
        top = TOP + number * (PANEL + GAP) + 28
        out.append(_text(LEFT, top - 20, label, "start", ' font-weight="bold"'))  # above the figures of the bars
        out += _falling(levels, top, width, label in more_is_better)
    bottom = TOP + len(panels) * (PANEL + GAP) + 6
    for place, name in enumerate([*names, "total"]):
        out.append(_text(LEFT + STEP * (place + 0.5), bottom, printable(name, STEP // CHARACTER), "middle"))
    return "\n".join([*out, "</svg>"]) + "\n"


def _falling(levels: Sequence[Level | None], top: float, width: float, rising: bool) -> list[str]:
    """The bars of one panel. rising: whether more is better."""
    there = [level for level in levels if level is not None]
    if not there:
        return [_text(LEFT + 8, top + PANEL / 2, "not measured", "start")]
    ends = [x for level in there for x in (level.value, level.low, level.high) if x is not None]
    if not all(map(math.isfinite, ends)):
        raise ValueError("a chart needs finite numbers")
    marks = ticks(min(ends) if rising else 0.0, max(ends))

    def y(value: float) -> float:
        return top + PANEL * (1 - (value - marks[0]) / (marks[-1] - marks[0]))

    out = []
    for tick in (marks[0], marks[-1]):
        out.append(f'<path d="M{LEFT} {y(tick):.1f}H{width - RIGHT}" stroke="#ddd"/>')
        out.append(_text(LEFT - 6, y(tick) + 4, f"{tick:g}", "end"))
    before: Level | None = None
    for place, level in enumerate([*levels, there[-1]]):
        left = LEFT + STEP * place + 14
        if level is None:
            continue
        whole = before is None or place == len(levels)
        start = marks[0] if whole or before is None else before.value
        change = 0.0 if before is None else level.value - before.value
        colour = WHOLE if whole or not change else BETTER if (change > 0) == rising else WORSE
        high, low = min(y(start), y(level.value)), max(y(start), y(level.value))
        out.append(
            f'<rect x="{left}" y="{high:.1f}" width="{STEP - 28}" height="{max(1.5, low - high):.1f}" fill="{colour}"/>'
        )
        middle = left + (STEP - 28) / 2
        if level.low is not None and level.high is not None:
            out.append(f'<path d="M{middle} {y(level.low):.1f}V{y(level.high):.1f}" stroke="black"/>')
            high = min(high, y(level.high))
        if not whole:
            out.append(f'<path d="M{left - 28} {y(start):.1f}h28" stroke="#999" stroke-dasharray="2 2"/>')
        out.append(_text(middle, high - 3, f"{level.value:.4g}" if whole else f"{change:+.3g}", "middle"))
        before = level
    return out


def _short(name: str) -> str:
    return printable(name, 40)


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(printable(text, 90))}</text>'


def ticks(low: float, high: float, steps: int = 5) -> list[float]:
    """Round numbers that enclose [low, high], about one more than `steps`."""
    span = max(high - low, 1e-9 * max(abs(low), abs(high), 1.0))  # equal values get a frame around them
    power = 10.0 ** math.floor(math.log10(span / steps))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= span / steps * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]

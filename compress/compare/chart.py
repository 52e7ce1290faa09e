"""The trade-off as SVG of our own: latency, quality with its interval, megabytes as the area of a bubble."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from compress.compare.frontier import DOMINATED, ON, OPEN, UNRANKED, RankedRow
from compress.compare.rows import LATENCY, SIZE
from compress.compare.table import quality_cell
from compress.errors import columns, printable
from compress.report.plots import COLOURS, ticks
from compress.report.rows import in_percent, title

TABBED = 60  # points that the tab key stops at; of more, those on the frontier only, and no interval is drawn
LEFT, RIGHT, TOP, BOTTOM = 62, 26, 16, 46
SMALLEST = 2.5  # radius in pixels
CHARACTER = 6.6


@dataclass(frozen=True)
class Shape:
    """Pixels of a drawing: text stays as large as it is, so a phone gets a drawing of its own."""

    name: str
    width: int
    height: int
    steps: int
    largest: float
    letters: int


WIDE, NARROW = Shape("wide", 860, 460, 6, 20.0, 28), Shape("narrow", 350, 360, 3, 13.0, 18)


def drawable(judged: Sequence[RankedRow]) -> list[RankedRow]:
    """Those with quality, latency and size."""
    return [j for j in judged if not j.row.missing]


def methods(judged: Sequence[RankedRow]) -> dict[str, str]:
    """Method → its colour, the same in every drawing; the most frequent ones have one of their own."""
    counts: dict[str, int] = {}
    for j in judged:
        counts[method(j)] = counts.get(method(j), 0) + 1
    order = sorted(counts, key=lambda name: (-counts[name], name))
    return {name: COLOURS[i] if i < len(COLOURS) else "#767676" for i, name in enumerate(order)}


def method(j: RankedRow) -> str:
    """What made the model; teachers and controls are told apart."""
    role = j.row.facts.get("role", "").partition("-")[0]
    return role if role in ("teacher", "control") else j.row.facts.get("method") or role or "model"


def trade_off(
    judged: Sequence[RankedRow], anchors: Sequence[str], shape: Shape, colours: dict[str, str], heaviest: float
) -> str:
    """One drawing of rows that `drawable` gave. anchors: for each, the id of its line in the table.

    heaviest: megabytes of the largest point, the same in all drawings of a page.

    Points on the frontier are full and bear their names, the others are hollow; each can be reached with the tab key,
    is a link to its line in the table, and says its figures to a screen reader.
    """
    qualities = [j.row.quality or (0.0, None, None) for j in judged]
    lows = [v if low is None else low for v, low, _ in qualities]
    highs = [v if high is None else high for v, _, high in qualities]
    latency, size = ([j.row.values[key] for j in judged] for key in (LATENCY, SIZE))
    share = 100 if in_percent(judged[0].row.metric or "") else 1
    x_ticks, y_ticks = ticks(0.0, max(latency), shape.steps), ticks(min(lows) * share, max(highs) * share, 6)
    right, bottom = shape.width - RIGHT, shape.height - BOTTOM

    def x(value: float) -> float:
        return LEFT + (right - LEFT) * (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * (value * share - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    out = [
        f'<svg class="{shape.name}" viewBox="0 0 {shape.width} {shape.height}" role="group" '
        'aria-label="Quality versus latency; the area of a point is the size on disk in megabytes">'
    ]
    for tick in y_ticks:
        out.append(f'<path class="grid" d="M{LEFT} {y(tick / share):.1f}H{right}"/>')
        out.append(_draw_text(LEFT - 7, y(tick / share) + 4, f"{tick:g}", "end"))
    for tick in x_ticks:
        out.append(f'<path class="grid" d="M{x(tick):.1f} {TOP}V{bottom}"/>')
        out.append(_draw_text(x(tick), bottom + 18, f"{tick:g}", "middle"))
    out.append(_draw_text((LEFT + right) / 2, shape.height - 8, "latency p50, ms", "middle"))
    unit = title(judged[0].row.metric or "quality") + (", %" if share == 100 else "")
    turned = f'<g transform="translate(15 {(TOP + bottom) / 2:.0f}) rotate(-90)">'
    out.append(f"{turned}{_draw_text(0, 0, unit, 'middle')}</g>")
    order = sorted(range(len(judged)), key=lambda i: (judged[i].place == ON, -size[i]))
    largest = shape.largest * min(1.0, math.sqrt(TABBED / len(judged)))
    radii = [max(SMALLEST, largest * math.sqrt(s / (heaviest or 1.0))) for s in size]
    centres = [(x(t), y(q[0])) for t, q in zip(latency, qualities, strict=True)]
    names, labels = _Labels(shape, centres, radii), []
    for i in order:
        j, at = judged[i], centres[i]
        on = j.place == ON
        tabbed = len(judged) <= TABBED or on
        classes = "point " + {ON: "on", OPEN: "open"}.get(j.place, "off")
        line = f'<path class="interval" d="M{at[0]:.1f} {y(lows[i]):.1f}V{y(highs[i]):.1f}"/>'
        out.append(
            f'<a class="{classes}" href="#{anchors[i]}" data-row="{anchors[i]}" tabindex="{0 if tabbed else -1}" '
            f'aria-label="{escape(spoken(j), quote=True)}" style="--c:{colours[method(j)]}">'
            f"{line if len(judged) <= TABBED else ''}"
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radii[i]:.1f}"/>'
            f"<title>{escape(spoken(j))}</title></a>"
        )
        if on and (place := names.place(j.row.name, i)) is not None:
            labels.append(_draw_text(*place, printable(j.row.name, shape.letters), "start", ' class="name"'))
    return "\n".join([*out, *labels, "</svg>"])


def spoken(j: RankedRow) -> str:
    """A row in one sentence: its recipe and its figures."""
    row = j.row
    recipe = ", ".join(
        f"{label} {row.facts[key]}" if label else row.facts[key]
        for key, label in (("recipe", "recipe"), ("method", ""), ("student.layers", "layers"))
        if row.facts.get(key)
    )
    places = {
        ON: "on the Pareto frontier",
        OPEN: f"possibly dominated by {j.by}",
        DOMINATED: f"dominated by {j.by}",
        UNRANKED: "not ranked",
    }
    figures = f"{quality_cell(row)}, {row.values[LATENCY]:.2f} ms, {row.values[SIZE]:.2f} MB"
    return printable(f"{row.name}: {figures}; {places.get(j.place, j.place)}" + (f"; {recipe}" if recipe else ""), 400)


class _Labels:
    """Places for names beside their points, so that none covers another or a point: what finds none is not written."""

    def __init__(self, shape: Shape, centres: Sequence[tuple[float, float]], radii: Sequence[float]) -> None:
        self.shape, self.centres, self.radii = shape, centres, radii
        self.taken = [(x - 0.8 * r, y - 0.8 * r, x + 0.8 * r, y + 0.8 * r)
                      for (x, y), r in zip(centres, radii, strict=True)]  # fmt: skip

    def place(self, name: str, number: int) -> tuple[float, float] | None:
        """Left end and base line of a point's name."""
        long, radius = CHARACTER * columns(printable(name, self.shape.letters)), self.radii[number]
        x, y = self.centres[number]
        for dx, dy in ((radius + 4, 4), (-radius - 4 - long, 4), (-long / 2, -radius - 6), (-long / 2, radius + 14)):
            left, base = x + dx, y + dy
            box = (left, base - 11, left + long, base + 3)
            inside = left >= LEFT and left + long <= self.shape.width - 4 and TOP < base < self.shape.height - BOTTOM
            if inside and not any(_boxes_overlap(box, other) for other in self.taken):
                self.taken.append(box)
                return left, base
        return None


def _boxes_overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _draw_text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(printable(text, 90))}</text>'

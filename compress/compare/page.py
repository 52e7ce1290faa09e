"""The comparison as one HTML page that needs no network: drawings and data inside it, for screen, phone and paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from compress.compare import chart, table
from compress.compare.frontier import ON, RankedRow, in_words
from compress.compare.query import NAME, PARETO, less_is_better
from compress.compare.rows import MISSING, SIZE
from compress.errors import printable, without_folders
from compress.report.rows import (
    GROUPS_NOTE,
    explain_no_figures,
    groups_sentence,
    groups_table,
    has_figures,
    slices_footnote,
    slices_sentence,
    slices_table,
)
from evaluation.quality.gaps import find_largest_gap, measure_gaps
from evaluation.quality.slices import Slice, find_worse

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Picture:
    """An SVG of a run. about: what it shows, also for those who cannot see it."""

    about: str
    svg: str


@dataclass(frozen=True)
class Detail:
    """What is known of one row beside its figures. churn: (columns, rows).  slices: of `metric`.  groups: of the values
    of one column, by the same metric."""

    name: str
    pictures: Sequence[Picture] = ()
    churn: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None
    slices: Sequence[Slice] = ()
    metric: str = ""
    groups: Sequence[Slice] = ()


def page(
    title: str, judged: Sequence[RankedRow], keys: Sequence[str], notes: Sequence[str], details: Sequence[Detail]
) -> str:
    """The whole page. keys: the columns of its table.  details: in their order, of some of the rows."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    style = (HERE / "page.css").read_text(encoding="utf-8")
    pinned = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{pinned}'"
    anchors = [f"row-{i + 1}" for i in range(len(judged))]
    parts = [
        ("chart", "Trade-off", _draw_charts(judged, anchors)),
        ("table", "Models", _build_table(judged, anchors, keys)),
        ("slices", "Slices", _build_slices(details)),
        ("groups", "Groups", _build_groups(details)),
        ("churn", "Changed predictions", "".join(_build_churn(d) for d in details if d.churn is not None)),
        ("pictures", "Plots", "".join(_embed_pictures(d) for d in details if d.pictures)),
    ]
    shown = [(key, head, body) for key, head, body in parts if body]
    links = " ".join(f'<a href="#{key}">{head}</a>' for key, head, _ in shown)
    said = "".join(f"<li>{_escape(line)}</li>" for line in notes)
    body = "\n".join(f'<section id="{key}"><h2>{head}</h2>{body}</section>' for key, head, body in shown)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=True)}">
<meta name="color-scheme" content="light dark">
<title>{_escape(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#table">Skip to the table</a>
<main>
<h1>{_escape(title)}</h1>
<nav aria-label="Sections">{links}</nav>
<ul class="soft">{said}</ul>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def _draw_charts(judged: Sequence[RankedRow], anchors: Sequence[str]) -> str:
    """A drawing for each group of rows that may be compared: the same data and the same conditions."""
    able = {id(j) for j in chart.drawable(judged)}
    groups: dict[tuple, list[int]] = {}
    for i, j in enumerate(judged):
        if id(j) in able:
            groups.setdefault((j.row.data, j.row.conditions), []).append(i)
    if not groups:
        return ""
    drawn_rows = [j for j in judged if id(j) in able]
    colours, heaviest = chart.methods(drawn_rows), max(j.row.values[SIZE] for j in drawn_rows)
    out = []
    for _, places in sorted(groups.items(), key=lambda item: -len(item[1])):
        chosen, named = [judged[i] for i in places], [anchors[i] for i in places]
        drawn = "".join(
            chart.trade_off(chosen, named, shape, colours, heaviest) for shape in (chart.WIDE, chart.NARROW)
        )
        row = chosen[0].row
        where = "; ".join(
            filter(None, (without_folders(row.context.get("dataset", ""), parts=2), in_words(row.conditions or ())))
        )
        out.append(f"<figure>{drawn}<figcaption>{_escape(where)}</figcaption></figure>")
    legend = "".join(f'<li><i style="--c:{colour}"></i>{_escape(name)}</li>' for name, colour in colours.items())
    legend += '<li><i class="full"></i>Pareto</li><li><i class="dashed"></i>maybe</li>'
    legend += '<li><i class="hollow"></i>dominated, or not ranked</li>'
    told = '<p id="said" aria-live="polite">Point at a bubble, or select it with the tab key, to see its figures here. '
    told += "The area of a bubble is the size on disk; the line through it is the 95 % interval of quality.</p>"
    left = [j.row.name for j in judged if id(j) not in able]
    more = f'<p class="soft">Not drawn because a figure is missing: {_escape(", ".join(left[:20]))}</p>' if left else ""
    return f'<ul class="legend">{legend}</ul>{"".join(out)}{told}{more}'


def _build_table(judged: Sequence[RankedRow], anchors: Sequence[str], keys: Sequence[str]) -> str:
    names = table.heads(keys, [j.row for j in judged])
    heads, numeric = [], []
    for key, name in zip(keys, names, strict=True):
        values = [table.sortable(j, key) for j in judged]
        number = key != PARETO and any(isinstance(v, float) for v in values)
        numeric.append(number)
        first = "descending" if number and not less_is_better(key) else "ascending"
        heads.append(_build_head(name, number, first))
    lines = []
    for j, anchor in zip(judged, anchors, strict=True):
        cells = []
        for key, name, number in zip(keys, names, numeric, strict=True):
            value = table.sortable(j, key)
            text = table.cell(j, key)
            cells.append(_build_cell(text, name, "" if value is None else str(value), number, row=key == NAME))
        on = " class='on'" if j.place == ON else ""
        lines.append(f'<tr role="row" id="{anchor}"{on}>{"".join(cells)}</tr>')
    return _frame_table("Models, sortable by the buttons in the header", heads, lines)


def _build_slices(details: Sequence[Detail]) -> str:
    """A table for each model, or why it has none; unfolded are those that fail more than their parent somewhere."""
    out = [
        f"<p>{_escape(explain_no_figures(d.name, d.slices))}</p>"
        for d in details
        if d.slices and not has_figures(d.slices)
    ]
    known = [d for d in details if has_figures(d.slices)]
    for d in known:
        columns, rows = slices_table(d.slices, d.metric)
        columns = [*columns[:-1], "verdict"] if columns[-1] == "" else list(columns)
        kinds = [{"fails more": "worse", "fails less": "better"}.get(s.verdict, "") for s in d.slices]
        numeric = [0 < i < len(columns) - 1 for i in range(len(columns))]
        inner = _build_rows(f"Slices of {d.name}", columns, numeric, rows, [_list_orders(s) for s in d.slices], kinds)
        opened = len(known) == 1 or bool(find_worse(d.slices))
        out.append(_wrap_details(d.name, slices_sentence(d.slices, d.metric), inner, opened=opened))
    note = slices_footnote([s for d in known for s in d.slices]) if known else ""
    return (f'<p class="soft">{_escape(note)}</p>' if note else "") + "".join(out)


def _build_groups(details: Sequence[Detail]) -> str:
    """A table for each model; unfolded are those whose best and worst group measurably differ."""
    out = []
    known = [d for d in details if d.groups]
    for d in known:
        columns, rows = groups_table(d.groups, d.metric)
        gaps = measure_gaps(d.groups)
        orders = [
            _to_texts(f"{s.by}: {s.name}", s.rows, s.value and s.value.value, gap and gap.value)
            for s, gap in zip(d.groups, gaps, strict=True)
        ]
        kinds = ["worse" if gap is not None and gap.low > 0 else "" for gap in gaps]
        numeric = [i > 0 for i in range(len(columns))]
        inner = _build_rows(f"Groups of {d.name}", columns, numeric, rows, orders, kinds)
        largest = find_largest_gap(d.groups)
        opened = len(known) == 1 or (largest is not None and largest.is_measurable)
        out.append(_wrap_details(d.name, groups_sentence(d.groups, d.metric), inner, opened=opened))
    return f'<p class="soft">{_escape(GROUPS_NOTE)}</p>{"".join(out)}' if out else ""


def _build_rows(
    caption: str,
    columns: Sequence[str],
    numeric: Sequence[bool],
    rows: Sequence[Sequence[str]],
    orders: Sequence[Sequence[str]],
    kinds: Sequence[str],
) -> str:
    """A sortable table. orders: what the cells of each row are sorted by.  kinds: class of each row, or ""."""
    heads = [_build_head(name, number, "ascending") for name, number in zip(columns, numeric, strict=True)]
    lines = []
    for row, order, kind in zip(rows, orders, kinds, strict=True):
        cells = [_build_cell(text, columns[i], order[i], numeric[i], row=i == 0) for i, text in enumerate(row)]
        named = f' class="{kind}"' if kind else ""
        lines.append(f'<tr role="row"{named}>{"".join(cells)}</tr>')
    return _frame_table(caption, heads, lines)


def _wrap_details(name: str, lines: Sequence[str], inner: str, *, opened: bool) -> str:
    sentence = "".join(f"<p>{_escape(line)}</p>" for line in lines)
    return f"<details{' open' if opened else ''}><summary>{_escape(name)}</summary>{sentence}{inner}</details>"


def _list_orders(s: Slice) -> list[str]:
    """What the cells of a slice are sorted by."""
    value, apart = s.value and s.value.value, s.difference and s.difference.value
    return _to_texts(f"{s.by}: {s.name}", s.rows, value, s.parent, apart, s.adjusted, s.verdict)


def _to_texts(*values: float | str | None) -> list[str]:
    return ["" if value is None else str(value) for value in values]


def _build_churn(d: Detail) -> str:
    assert d.churn is not None
    columns, rows = d.churn
    heads = [_build_head(name, i > 0, "descending") for i, name in enumerate(columns)]
    lines = []
    for row in rows:
        cells = [_build_cell(str(text), columns[i], str(text).replace(",", ""), i > 0, row=i == 0)
                 for i, text in enumerate(row)]  # fmt: skip
        lines.append(f'<tr role="row">{"".join(cells)}</tr>')
    inner = _frame_table(f"Changed predictions of {d.name}", heads, lines)
    return f"<details><summary>{_escape(d.name)}</summary>{inner}</details>"


def _embed_pictures(d: Detail) -> str:
    out = []
    for picture in d.pictures:
        data = base64.b64encode(picture.svg.encode()).decode()
        # As an image nothing in a foreign SVG runs or loads.
        image = f'<img alt="{_escape(picture.about)}, {_escape(d.name)}" src="data:image/svg+xml;base64,{data}">'
        scroll = f'<div class="scroll" tabindex="0" role="group" aria-label="{_escape(picture.about)}">{image}</div>'
        out.append(f'<figure class="plot">{scroll}<figcaption>{_escape(picture.about)}</figcaption></figure>')
    return f'<h3>{_escape(d.name)}</h3><div class="plots">{"".join(out)}</div>'


def _frame_table(caption: str, heads: Sequence[str], lines: Sequence[str]) -> str:
    head = f'<thead role="rowgroup"><tr role="row">{"".join(heads)}</tr></thead>'
    body = f'<tbody role="rowgroup">{"".join(lines)}</tbody>'
    return f'<table class="sortable" role="table" aria-label="{_escape(caption)}">{head}{body}</table>'


def _build_head(name: str, number: bool, first: str) -> str:
    kind = ' class="number"' if number else ""
    button = f'<button type="button">{_escape(name)}</button>'
    return f'<th role="columnheader" scope="col" aria-sort="none" data-first="{first}"{kind}>{button}</th>'


def _build_cell(text: str, name: str, order: str, number: bool, *, row: bool = False) -> str:
    kinds = " ".join(["number"] * number + ["none"] * (text in ("", MISSING)))
    kind = f' class="{kinds}"' if kinds else ""
    role = "rowheader" if row else "cell"
    label, value = _escape(name), escape(order, quote=True)
    return f'<td role="{role}" data-label="{label}" data-sort="{value}"{kind}>{_escape(text)}</td>'


def _escape(text: str) -> str:
    return escape(printable(text), quote=True)

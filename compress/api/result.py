"""What a function returns: the figures of a command as a dictionary, a table and a trade-off plot."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compress.compare.frontier import RankedRow
    from compress.compare.rows import Row

STYLE = """
.compress svg { max-width: 860px; font-size: 12px; fill: #222; background: #fff; }
.compress svg .grid { stroke: #ddd; fill: none; }
.compress svg .interval { stroke: var(--c); stroke-width: 1.5; fill: none; }
.compress svg .point circle { fill: #fff; fill-opacity: 0.35; stroke: var(--c); stroke-width: 1.5; }
.compress svg .point.open circle { fill: var(--c); fill-opacity: 0.3; stroke-dasharray: 3 2; }
.compress svg .point.on circle { fill: var(--c); fill-opacity: 0.8; }
"""
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


class Result:
    """The figures of one command.

    In a notebook it is shown as a table and, where several models were measured, as a plot of quality against latency.
    """

    def __init__(self, verb: str, document: Mapping[str, Any]) -> None:
        self.verb, self._document = verb, dict(document)

    def to_dict(self) -> dict[str, Any]:
        """What the command prints under `--json`, as plain dictionaries, lists, numbers and strings."""
        return copy.deepcopy(self._document)

    def __getitem__(self, key: str) -> Any:
        """A value of `to_dict()`."""
        return copy.deepcopy(self._document[key])

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Name of a measured model → its figures by MLflow name, such as `quality/accuracy` or `size/disk_mb`."""
        return {row.name: dict(row.values) for row in self._rows()}

    @property
    def folder(self) -> Path | None:
        """The folder of the run; None where the command keeps none."""
        found = self._document.get("folder")
        return None if found is None else Path(found)

    @property
    def run_id(self) -> str | None:
        """The run's id in the MLflow store; None where nothing was tracked, or the store has not received it yet."""
        from compress.tracking import read_stored_run_id

        found = self._document.get("run", self._document.get("folder"))
        return None if found is None else read_stored_run_id(Path(found))

    @property
    def table(self) -> Table:
        """(columns, rows) of text: what the command prints."""
        from compress.compare import table

        if "disturbance" in self._document:
            from compress.commands.robustness import make_table

            return make_table(self._document["models"], self._document["difference"])
        if checks := self._document.get("checks"):
            return ("", "", ""), [(one["what"], one["verdict"], one["why"]) for one in checks]
        if measured := self._document.get("models"):
            return _comparison(measured, self._document.get("reference", "reference"))
        judged = self._judged()
        if judged:
            keys = table.columns([one.row for one in judged], ())
            return table.heads(keys, [one.row for one in judged]), [table.cells(one, keys) for one in judged]
        return ("", self.verb), [(key, "" if value is None else str(value)) for key, value in _plain(self._document)]

    def __repr__(self) -> str:
        columns, rows = self.table
        lines = [[str(cell) for cell in row] for row in (columns, *rows)]
        widths = [max(len(row[i]) for row in lines) for i in range(len(columns))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines]
        return "\n".join([f"{type(self).__name__} of {self.verb}", *text, *self._notes()])

    def _repr_html_(self) -> str:
        columns, rows = self.table
        head = "".join(f"<th>{escape(str(name))}</th>" for name in columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
        notes = "".join(f"<li>{escape(note)}</li>" for note in self._notes())
        return (
            f'<div class="compress"><style>{STYLE}</style>'
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{self._plot()}"
            + (f"<ul>{notes}</ul>" if notes else "")
            + "</div>"
        )

    def _notes(self) -> list[str]:
        return [str(note) for note in self._document.get("notes", ())]

    def _plot(self) -> str:
        """Quality against latency as SVG; empty for fewer than two models that have both."""
        from compress.compare.chart import WIDE, drawable, methods, trade_off
        from compress.compare.rows import SIZE

        shown = drawable(self._judged())
        if len(shown) < 2:
            return ""
        heaviest = max(one.row.values[SIZE] for one in shown)
        return trade_off(shown, [f"row-{i}" for i in range(len(shown))], WIDE, methods(shown), heaviest)

    def _judged(self) -> list[RankedRow]:
        from compress.compare.frontier import rank_rows

        return rank_rows(self._rows())[0]

    def _rows(self) -> list[Row]:
        """A row of the comparison for each model that was measured."""
        from compress.compare.rows import Row

        if plans := self._document.get("plans"):
            metric = ((self._document.get("certificate") or {}).get("quality") or {}).get("metric")
            return [_plan(plan, metric or "accuracy") for plan in plans if "timing" in plan]
        if "disturbance" in self._document:  # curves, which have no figures of their own
            return []
        found = self._document.get("models") or self._document.get("rows") or ()
        return [
            Row(one["name"], one["values"], one["context"], one.get("facts") or {"role": one.get("role", "")})
            for one in found
        ]


def _plain(document: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, str | float | None]]:
    """Path → value of everything that is no list."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _plain(value, f"{head}{key}.")
        elif isinstance(value, str | int | float) or value is None:
            yield head + key, value


def _comparison(measured: Sequence[Mapping[str, Any]], reference: Any) -> Table:
    from compress.contracts import Measurement
    from compress.report.rows import comparison, name_model

    names = [name_model(one["name"], one.get("role"), reference) for one in measured]
    return comparison(names, [Measurement(one["values"], one["context"]) for one in measured], reference)


def _plan(plan: Mapping[str, Any], metric: str) -> Row:
    """A plan of `compress fit`, measured on validation rows."""
    from compress.compare.rows import LATENCY, SIZE, Row

    value, timing = plan["value"], plan["timing"]
    key = f"quality/{metric}"
    values = {
        key: value,
        f"{key}_low": value - (plan["drop_high"] - plan["drop"]) / 100,
        f"{key}_high": value + (plan["drop"] - plan["drop_low"]) / 100,
        SIZE: plan["mb"],
        LATENCY: timing["p50"],
    }
    return Row(plan["name"], values, {"metric": metric, "dataset": "validation"}, {"method": "fit"})

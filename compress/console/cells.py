"""The values of tables and of progress, as text."""

from __future__ import annotations

from compress.errors import printable


def format_cell(value: object) -> str:
    """A value as a cell: numbers short, nothing as a dash, text without control characters."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 9_999.5 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def is_figure(value: object) -> bool:
    """A number, or text that starts like one (`91.2 ± 0.4`, `3.1×`)."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return True
    text = str(value).lstrip("+-−")
    return not text or text[:1].isdigit() or text == "–"

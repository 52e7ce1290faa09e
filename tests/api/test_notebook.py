"""The notebook in docs, cell after cell, as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import compress

NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.ipynb"


def cells(kind: str) -> list[str]:
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == kind]


def test_it_is_stored_without_outputs() -> None:
    """Figures in a file that nobody runs again would grow old."""
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    assert all(cell["outputs"] == [] for cell in document["cells"] if cell["cell_type"] == "code")


@pytest.mark.store
@pytest.mark.thorough
def test_it_runs_from_top_to_bottom(place: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells("code")):
        exec(compile(cell, f"cell {number}", "exec"), names)
    assert names["distilled"].run_id
    assert compress.load("small-model").config.depth == 2
    assert "<table>" in names["made"]._repr_html_()
    assert names["student"].config.depth == 2

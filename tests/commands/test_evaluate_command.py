"""`compress evaluate`: options that it rejects, and which tables it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from measured_models import measured_model

from compress.commands import evaluate as command
from compress.contracts import RunOptions
from compress.errors import UserError


class Console:
    def __init__(self) -> None:
        self.tables: list[str] = []

    def table(self, title: str, columns: Any, rows: Any) -> None:
        self.tables.append(str(columns[0]))


def evaluate(monkeypatch: pytest.MonkeyPatch, measured: list[Any], against: str | None, **flags: Any) -> list[str]:
    """What was printed."""
    console = Console()
    monkeypatch.setattr(command, "Console", lambda **_: console)
    monkeypatch.setattr(command, "measure_models", lambda *_, **__: measured)
    for what in ("measured", "slices", "groups"):
        monkeypatch.setattr(command, f"print_{what}", lambda *_, what=what: console.tables.append(what))
    monkeypatch.setattr(command, "churn_table", lambda *_: (("churn",), []))
    assert command.evaluate("m", against, "test", 10, RunOptions(), **flags) is measured
    return console.tables


@pytest.mark.parametrize("option", [{"output": Path("x")}, {"tracking_uri": "file:x"}, {"experiment": "x"}])
def test_what_only_robustness_writes(option: dict[str, Any]) -> None:
    flag = "--" + next(iter(option)).replace("_", "-")
    with pytest.raises(UserError, match=f"{flag}.*only applies with --robustness"):
        command.evaluate("m", None, "test", 10, RunOptions(**option))


def test_slices_are_printed_where_they_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [measured_model("teacher"), measured_model("student", churn=["changed"])]
    assert evaluate(monkeypatch, models, "parent", slices=True) == ["measured", "churn", "slices", "groups"]
    assert evaluate(monkeypatch, models[:1], None) == ["measured", "groups"]

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
    def __init__(self, **_: Any) -> None:
        self.tables: list[str] = []
        self.lines: list[str] = []

    def table(self, title: str, columns: Any, rows: Any) -> None:
        self.tables.append(str(columns[0]))

    def result(self, text: str) -> None:
        self.lines.append(text)


def evaluate(monkeypatch: pytest.MonkeyPatch, measured: list[Any], against: str | None, **flags: Any) -> Console:
    console = Console()
    json = flags.pop("json", False)
    monkeypatch.setattr(command, "Console", lambda **_: console)
    monkeypatch.setattr(command, "measure_models", lambda *_, **__: measured)
    monkeypatch.setattr(command, "print_measured", lambda *_: console.tables.append("figures"))
    monkeypatch.setattr(command, "print_groups", lambda *_: console.tables.append("groups"))
    monkeypatch.setattr(command, "churn_table", lambda *_: (("churn",), []))
    monkeypatch.setattr(command, "slices_table", lambda slices, metric: ((f"slices of {slices[0]}",), []))
    monkeypatch.setattr(command, "has_figures", lambda slices: "small" not in slices)
    monkeypatch.setattr(command, "explain_no_figures", lambda name, _: f"no figures of {name}")
    monkeypatch.setattr(command, "slices_sentence", lambda _: ["a sentence"])
    monkeypatch.setattr(command, "slices_footnote", lambda _: "a note")
    assert command.evaluate("m", against, "test", 10, RunOptions(json=json), **flags) is measured
    return console


@pytest.mark.parametrize("option", [{"output": Path("x")}, {"tracking_uri": "file:x"}, {"experiment": "x"}])
def test_what_only_robustness_writes(option: dict[str, Any]) -> None:
    flag = "--" + next(iter(option)).replace("_", "-")
    with pytest.raises(UserError, match=f"{flag}.*only applies with --robustness"):
        command.evaluate("m", None, "test", 10, RunOptions(**option))


def test_slices_are_of_the_student_where_two_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [
        measured_model("teacher", slices=["parent"]),
        measured_model("student", slices=["student"], churn=["changed"]),
    ]
    found = evaluate(monkeypatch, models, "parent", slices=True)
    assert found.tables == ["figures", "churn", "slices of student", "groups"]
    assert found.lines == ["a sentence", "a note"]


def test_slices_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [measured_model("teacher", slices=["it"])]
    assert evaluate(monkeypatch, alone, None, slices=True).tables == ["figures", "slices of it", "groups"]
    assert evaluate(monkeypatch, alone, None).tables == ["figures", "groups"]


def test_slices_without_figures_are_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluate(monkeypatch, [measured_model("teacher", slices=["small"])], None, slices=True)
    assert found.tables == ["figures", "groups"]
    assert found.lines == ["no figures of teacher"]


def test_json_is_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [measured_model("teacher", slices=["it"]), measured_model("student", slices=["it"], churn=["x"])]
    assert evaluate(monkeypatch, models, "parent", slices=True, json=True).tables == ["figures"]

"""Models that a command measures on labelled data: their names, who is the parent, and what they are timed in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from measured_models import measured_model

from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.errors import UserError
from compress.measure import labelled
from compress.measure.labelled import measure_models, open_labelled, print_groups, print_slices
from compress.predict import real_texts
from evaluation.quality.intervals import Interval
from evaluation.quality.slices import Slice


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `measure` was asked for."""
    found: dict[str, Any] = {}
    recipe = SimpleNamespace(data=SimpleNamespace(max_length=24))
    table = SimpleNamespace(
        split=lambda name: f"rows of {name}", task="classification", display_name="x",
        fingerprint="abc", measured_fingerprint="abc", label_names=("a", "b"),
        splits={"validation": "held"},
    )  # fmt: skip

    def measure(subjects: list[Any], rows: str, **how: Any) -> list[Any]:
        found.update(how, subjects=[(s.name, s.role, s.runtime) for s in subjects], rows=rows)
        return []

    monkeypatch.setattr(labelled, "resolve", lambda name, *_: Path(name))
    monkeypatch.setattr(labelled.modelfolder, "inspect", lambda _: SimpleNamespace(label_names=("a", "b")))
    monkeypatch.setattr(labelled, "open_labelled", lambda *_, **__: (recipe, table))
    monkeypatch.setattr(labelled, "settings_for", lambda *_: {})
    monkeypatch.setattr(labelled, "measure", measure)
    monkeypatch.setattr(labelled, "sample_texts", lambda rows, **how: (rows, how))
    monkeypatch.setattr(
        labelled, "_in_fastest", lambda s, *_, **__: type(s)(s.name, s.folder, s.role, runtime="onnxruntime")
    )
    return found


def subjects(measured: dict[str, Any], *models: str, against: str | None = None, **how: Any) -> list[tuple[str, ...]]:
    console: Any = SimpleNamespace(note=None, slow_progress=None)
    options = how.pop("options", RunOptions())
    measure_models(models, against, how.pop("split", "test"), 100, options, console, **how)
    return measured["subjects"]


def test_one_model_is_its_own_reference(measured: dict[str, Any]) -> None:
    assert subjects(measured, "a") == [("a", "teacher", None)]
    assert subjects(measured, "a", "b", "a") == [("a", "student", None), ("b", "student", None)], "each once"


def test_the_parent_comes_first_and_is_measured_once(measured: dict[str, Any]) -> None:
    assert subjects(measured, "a", against="p") == [("p", "teacher", None), ("a", "student", None)]
    assert subjects(measured, "a", "p", against="p") == [("p", "teacher", None), ("a", "student", None)]
    assert [role for _, role, _ in subjects(measured, "p", against="p")] == ["teacher", "student"], (
        "a model against itself shows what chance does"
    )


def test_models_are_timed_as_deployed_unless_a_runtime_is_named(measured: dict[str, Any]) -> None:
    assert subjects(measured, "a", as_deployed=True) == [("a", "teacher", "onnxruntime")]
    assert subjects(measured, "a", as_deployed=True, options=RunOptions(runtime="torch")) == [("a", "teacher", None)]
    assert measured["runtime"] == "torch"


def test_a_temperature_is_never_fitted_on_the_measured_rows(measured: dict[str, Any]) -> None:
    subjects(measured, "a")
    assert (measured["rows"], measured["held"], measured["dataset"]) == ("rows of test", "held", "x/test")
    subjects(measured, "a", split="validation")
    assert (measured["rows"], measured["held"]) == ("rows of validation", None)


def test_models_with_folders_of_one_name_are_told_apart(measured: dict[str, Any]) -> None:
    assert [name for name, *_ in subjects(measured, "small/best", "large/best")] == ["small/best", "large/best"]
    assert [name for name, *_ in subjects(measured, "small/best", against="large/best")] == ["large/best", "small/best"]
    assert [name for name, *_ in subjects(measured, "p", against="p")] == ["p", "p (2)"]


def test_texts_of_the_data_are_timed_unless_a_length_is_given(
    measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects(measured, "a", split="validation")
    rows, how = measured["cost"].texts
    assert (rows, measured["cost"].length) == ("rows of validation", None)
    assert how == {"data": "x/validation", "digest": "abc", "max_length": 24, "calls": real_texts.TIMED}
    info = SimpleNamespace(config=SimpleNamespace(max_positions=64), label_names=("a", "b"))
    monkeypatch.setattr(labelled.modelfolder, "inspect", lambda _: info)
    subjects(measured, "a", length=64)
    assert (measured["cost"].length, measured["cost"].texts) == (64, None)
    with pytest.raises(UserError, match="--length 65: a has 64 positions"):
        subjects(measured, "a", length=65)


def test_a_model_with_a_choice_runs_in_the_fastest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []

    def fastest(predictor: Any, *shape: Any) -> Any:
        asked.append(shape)
        return SimpleNamespace(runtime="openvino")

    config = SimpleNamespace(quantization=None)
    monkeypatch.setattr(labelled.modelfolder, "inspect", lambda _: SimpleNamespace(config=config))
    monkeypatch.setattr(labelled, "fastest_for_shape", fastest)
    monkeypatch.setattr(labelled, "fastest_for_texts", fastest)
    monkeypatch.setattr(labelled.Subject, "predictor", lambda *_, **__: SimpleNamespace(max_length=24))
    one = labelled.Subject("a", tmp_path)
    console: Any = None
    texts: Any = "texts"
    fixed, real = labelled.CostPlan(length=24), labelled.CostPlan(texts=texts)
    assert labelled._in_fastest(one, real, RunOptions(), console) is one, (
        "it has no file that another runtime could run"
    )
    (tmp_path / labelled.RECORD).write_text("{}", encoding="utf-8")
    assert labelled._in_fastest(one, fixed, RunOptions(), console).runtime == "openvino"
    assert labelled._in_fastest(one, real, RunOptions(), console).runtime == "openvino"
    assert asked == [("a", 1, 24, console), ("a", "texts", console)]
    config.quantization = "int8"
    assert labelled._in_fastest(one, fixed, RunOptions(), console) is one


def test_data_are_read_as_long_as_the_model_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    table = SimpleNamespace(notes=("a note",))
    monkeypatch.setattr(labelled, "open_table_of", lambda recipe, *_, **__: opened.append(recipe) or table)
    said: list[str] = []
    console: Any = SimpleNamespace(note=said.append)
    named = RunOptions(overrides=(Override("data.source", "mine", "--data"),))
    info: Any = SimpleNamespace(longest_text=24)
    recipe, _ = open_labelled(info, named, console)
    assert recipe.data is not None
    assert (recipe.data.source, recipe.data.max_length) == ("mine", 24)
    assert said == ["a note"]
    with pytest.raises(UserError, match="--data: data is required: labelled rows, or texts for an embedding model"):
        open_labelled(info, RunOptions(), console)


def slice_of(value: float | None, difference: float | None = None) -> Slice:
    known, apart = (None if x is None else Interval(x, x - 0.1, x + 0.1, 50, 100) for x in (value, difference))
    p = None if difference is None else 1.0
    return Slice("kind", "a", 50, known, 0.9, apart, p, p, "" if known else "fewer than 30 rows")


def test_slices_are_of_all_models_but_the_parent(capsys: pytest.CaptureFixture[str]) -> None:
    parent = measured_model("teacher", name="large", slices=[slice_of(0.9)])
    small, tiny = (measured_model("student", name=name, slices=[slice_of(0.8, -0.1)]) for name in ("small", "tiny"))
    few = measured_model("student", name="few", slices=[slice_of(None)])
    print_slices(Console(), [parent, small, tiny, few])
    said = capsys.readouterr().out
    assert "large" not in said
    assert said.index("small\n") < said.index("tiny\n")
    assert said.count("does not measurably fail more") == 2
    assert "slices of few: none of the groups of rows has a figure: fewer than 30 rows" in said
    assert said.count("(Holm)") == 1, "one note for all tables"
    print_slices(Console(), [parent])
    alone = capsys.readouterr().out
    assert "kind: a" in alone
    assert "large" not in alone, "one table needs no name"


def group_of(name: str, value: float | None) -> Slice:
    found = None if value is None else Interval(value, value - 0.02, value + 0.02, 100, 1000)
    return Slice("place", name, 100 if found else 5, found, why="" if found else "fewer than 30 rows")


def test_groups_too_small_to_compare_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    small = [group_of("a", None), group_of("b", None)]
    models = [measured_model("teacher", name="parent", groups=small), measured_model("student", groups=small)]
    print_groups(Console(), models)
    assert capsys.readouterr().out.count("so no gap is known") == 1
    large = [group_of("a", 0.9), group_of("b", 0.6)]
    models = [measured_model("teacher", name="parent", groups=large), measured_model("student", groups=large)]
    print_groups(Console(), models)
    assert capsys.readouterr().out.count("largest gap") == 2, "of each model below its table"

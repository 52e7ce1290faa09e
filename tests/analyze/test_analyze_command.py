"""`compress analyze`: where it writes, what it rejects before a model is loaded, and which tables go where."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.analyze import run
from compress.analyze.sentence_vectors import VectorOptions
from compress.analyze.subject import Analysis
from compress.contracts import RunOptions
from compress.errors import ExitCode, UserError

SNAPSHOT = "models--acme--small/snapshots/86b5e0934494bd15"


class Log:
    """A run of the store, which keeps what it is given."""

    def __init__(self) -> None:
        self.tables: dict[str, Any] = {}
        self.notes: list[str] = []
        self.values: dict[str, float] = {}
        self.artifacts: list[str] = []

    def table(self, path: Path, columns: Any, rows: Any) -> None:
        self.tables[path.name] = rows

    def artifact(self, path: Path) -> None:
        self.artifacts.append(path.name)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def metrics(self, values: dict[str, float]) -> None:
        self.values |= values


def analyze(monkeypatch: pytest.MonkeyPatch, folder: str, **options: Any) -> None:
    monkeypatch.setattr(run, "resolve", lambda *_: Path(folder))
    monkeypatch.setattr(run, "open_subject", lambda *_: pytest.fail("a model was loaded"))
    folders = options.pop("embedder", None)
    run.analyze("m", None, (), 10, VectorOptions(folder=folders), RunOptions(**options))


@pytest.mark.parametrize(
    ("folder", "written"),
    [
        ("runs/x/student", "analyze-x"),
        ("runs/x/model", "analyze-x"),
        ("small", "analyze-small"),
        (SNAPSHOT, "analyze-acme-small"),
    ],
)
def test_the_default_folder_is_named_like_the_model(
    folder: str, written: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (run.RUNS / written).mkdir(parents=True)
    with pytest.raises(UserError, match=f"{written}: the output folder exists") as error:
        analyze(monkeypatch, folder)
    assert error.value.code == ExitCode.REFUSED


def test_two_models_are_called_by_what_tells_them_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def open_subject(_: Path, name: str, *__: Any) -> None:
        raise UserError(name)

    monkeypatch.setattr(run, "resolve", lambda name, _: Path(name))
    monkeypatch.setattr(run, "open_subject", open_subject)
    options = RunOptions(output=tmp_path / "new")
    with pytest.raises(UserError, match=r"^teacher$"):
        run.analyze("runs/teacher/model", "runs/other/model", (), 10, VectorOptions(folder=None), options)


def test_an_embedder_is_not_written_over_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--save-embedder"):
        analyze(monkeypatch, "small", output=tmp_path / "new", embedder=tmp_path)


def found() -> Analysis:
    tables: dict[str, Any] = {
        "cka": ("similarity", (("layer", "CKA"), [("0", "1.0")])),
        "cosines": ("pairs", (("layer", "n"), [("0", "7")])),
        "anisotropy": ("isotropy", (("layer", "x"), [("0", "a"), ("1", "b"), ("2", "c")])),
        "hidden": ("of no interest", (("layer",), [("0",)])),
    }
    return Analysis(tables, {"cka": "<svg/>"}, ["one line"], {"v": 1.0}, shown={"anisotropy": 2, "hidden": 0})


def test_what_is_written_and_noted(tmp_path: Path) -> None:
    log: Any = Log()
    run._write(found(), tmp_path, log)
    assert set(log.tables) == {"cka.json", "cosines.json", "anisotropy.json", "hidden.json"}, "all tables are kept"
    assert (log.values, log.artifacts) == ({"v": 1.0}, ["cka.svg"])
    assert (tmp_path / "cka.svg").read_text() == "<svg/>"
    (note,) = log.notes
    assert "### isotropy" in note
    assert note.endswith("one line")
    assert "| 1 |" in note
    assert "| 2 |" not in note, "no more rows than the terminal has"
    assert not any(title in note for title in ("similarity", "pairs", "of no interest"))


def test_matrices_are_not_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown: dict[str, Any] = {}
    lines: list[str] = []
    documents: list[Any] = []
    console: Any = SimpleNamespace(
        table=lambda title, columns, rows: shown.setdefault(title, rows), result=lines.append,
        document=documents.append, warn=None,
    )  # fmt: skip

    class Opened(Log):
        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        params = dataset = lambda *_, **__: None

    monkeypatch.setattr(run, "open_requested_run", lambda *_, **__: Opened())
    table: Any = SimpleNamespace(display_name="d", fingerprint="f", name="d")
    run._tell(found(), tmp_path, "m", table, RunOptions(), console)
    assert list(shown) == ["isotropy, first 2 of 3"]
    assert lines == ["one line", f"plots and tables: {tmp_path}"]
    assert documents[0]["tables"]["anisotropy"]["data"] == [["0", "a"], ["1", "b"], ["2", "c"]]

"""What a stage's model says of where it comes from: parents, recipe and data, without the folders of this machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.data.reading.sources import open_table
from compress.modelfolder.meta import FolderMeta
from compress.stages.shared import folder_meta as module
from compress.stages.shared.folder_meta import _for_others, data_note, folder_meta

TABLE: Any = SimpleNamespace(
    task="classification", label_names=["bad", "good"], settings={"metric": "f1"}, display_name="opinions",
    fingerprint="ab", splits={"train": range(3), "test": range(2)}, language=(), columns={"text": "t"},
)  # fmt: skip
CORPUS: Any = SimpleNamespace(name="/home/me/wiki.txt", fingerprint="cd", language=["zh"])


def context(source: str = "x.csv") -> Any:
    recipe = SimpleNamespace(
        name="r", method="distil", data=SimpleNamespace(source=source, max_length=24),
        corpus=SimpleNamespace(source=source), hash=lambda: "h", model_dump=lambda mode: {"source": source},
    )  # fmt: skip
    return SimpleNamespace(recipe=recipe, folder=Path("runs/x/2-distill"))


@pytest.fixture
def parents(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A teacher whose card names no language, and a start that has both."""
    known = {
        Path("runs/t/model"): SimpleNamespace(family="bert", meta=FolderMeta(license="mit")),
        Path("s"): SimpleNamespace(family="roberta", meta=FolderMeta(language=("fr",), license="apache-2.0")),
    }
    monkeypatch.setattr(module.modelfolder, "inspect", known.__getitem__)
    monkeypatch.setattr(module.modelfolder, "fingerprint", lambda folder: f"of {folder}")
    return {"teacher": Path("runs/t/model"), "start": Path("s")}


def test_a_task(parents: dict[str, Path]) -> None:
    made = folder_meta(context(), parents, TABLE, notes=["note"])
    assert (made.family, made.language, made.license) == ("bert", ("fr",), "mit"), "each from the first that has one"
    assert (made.task, made.label_names, made.task_settings) == ("classification", ("bad", "good"), {"metric": "f1"})
    assert (made.max_length, made.method, made.notes) == (24, "distil", ("note",))
    assert [(p.role, p.name, p.fingerprint) for p in made.lineage] == [
        ("teacher", "t", "of runs/t/model"), ("start", "s", "of s")
    ]  # fmt: skip
    assert made.recipe is not None
    assert (made.recipe.name, made.recipe.sha256, made.recipe.stage) == ("r", "h", "2-distill")


def test_a_corpus() -> None:
    made = folder_meta(context(), {}, None, CORPUS)
    assert made.data is not None
    assert (made.data.name, made.data.fingerprint) == ("wiki.txt", "cd")
    assert (made.task, made.label_names, made.max_length, made.family) == (None, (), None, "")
    assert made.language == ("zh",)


def test_the_language_of_the_data_comes_before_that_of_a_parent(parents: dict[str, Path]) -> None:
    table: Any = SimpleNamespace(**{**vars(TABLE), "language": ["zh", "en"]})
    assert folder_meta(context(), parents, table).language == ("zh", "en")


def test_rows_are_counted_by_split() -> None:
    assert data_note(TABLE).rows == {"train": 3, "test": 2}


def test_folders_of_this_machine_are_left_out() -> None:
    values = {"data": {"source": "/home/me/secret/sets/x.csv", "rows": 3}, "paths": ["/home/me/secret/a/b.txt"]}
    found = _for_others(values)
    assert "me" not in str(found).replace("name", "")
    assert found["data"]["rows"] == 3
    assert found["data"]["source"].endswith("x.csv")


def test_the_server_of_an_object_store_is_left_out() -> None:
    found = _for_others({"source": "s3://bucket/rows?endpoint_override=10.0.0.7:9000&scheme=http"})
    assert found == {"source": "s3://bucket/rows"}


def test_the_note_of_the_data_says_whether_its_rows_are_pairs() -> None:
    assert "text_pair" in data_note(open_table("opinions-similarity", limit=20)).columns
    assert "text_pair" not in data_note(open_table("opinions", limit=20)).columns

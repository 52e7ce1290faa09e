"""What tables call models: short, and no two alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from compress.modelfolder.names import label_models, model_label, model_name
from compress.modelfolder.resolve import resolve

HUB = "hub/models--google-bert--bert-base-uncased/snapshots"


@pytest.mark.parametrize(
    ("folders", "labels"),
    [
        ([], []),
        (["runs/small"], ["small"]),
        (["runs/x/student"], ["x"]),
        (["runs/x/model"], ["x"]),
        (["runs/x/model", "runs/x/student", "runs/y/student"], ["x/model", "x/student", "y"]),
        (["runs/x", "runs/x/student"], ["runs/x", "x/student"]),
        (["a/best", "b/best", "c"], ["a/best", "b/best", "c"]),
        (["1/x/student", "2/x/student", "2/y/student"], ["1/x/student", "2/x/student", "y"]),
        (["1/x/best", "2/x/best", "3/y/best"], ["1/x/best", "2/x/best", "y/best"]),
        (["best", "./best", "best"], ["best", "best (2)", "best (3)"]),
        ([f"{HUB}/86b5e0934494bd15"], ["google-bert/bert-base-uncased"]),
        (
            [f"{HUB}/86b5e0934494bd15", f"{HUB}/0a6aa9128b6194f4"],
            ["google-bert/bert-base-uncased@86b5e093", "google-bert/bert-base-uncased@0a6aa912"],
        ),
    ],
)
def test_labels(folders: list[str], labels: list[str]) -> None:
    assert label_models([Path(folder) for folder in folders]) == labels


@pytest.mark.parametrize(
    ("folder", "label"),
    [("runs/x/model", "x"), ("small", "small"), ("/model", "model"), (f"{HUB}/86b5", "google-bert/bert-base-uncased")],
)
def test_one_model_has_one_label(folder: str, label: str) -> None:
    assert model_label(Path(folder)) == label
    assert label_models([Path(folder)]) == [label]


def test_one_snapshot_in_two_caches() -> None:
    first, second = label_models([Path(cache, HUB, "86b5e0934494bd15") for cache in ("one", "two")])
    assert first != second
    assert second.startswith("two/hub/")


def test_a_link_and_its_target_are_one_model(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "link").symlink_to("best")
    assert label_models([tmp_path / "best", tmp_path / "link"]) == ["best", "best (2)"]


def test_the_folder_one_is_in_and_the_one_above_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small" / "below").mkdir(parents=True)
    (tmp_path / "small" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "small")
    assert model_name(resolve(".")) == "small"
    monkeypatch.chdir(tmp_path / "small" / "below")
    assert model_name(resolve("..")) == "small"
    monkeypatch.chdir(tmp_path)
    assert resolve("small") == Path("small"), "others stay as they are given"

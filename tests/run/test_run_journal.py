"""The tracked runs that a run opens: which experiment, parent, name and tags each gets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.contracts import RunOptions
from compress.recipe import load_recipe
from compress.run import journal as module
from compress.run.journal import Journal
from compress.tracking import Parent, run

CONTENT = {"name": "x", "teacher": "t", "data": {"source": "d"}, "stages": [{"kind": "prune_layers", "drop": 1}]}
RECIPE = load_recipe(CONTENT)


def journal(store: str, **more: Any) -> Journal:
    unused: Any = SimpleNamespace(warn=None, quality="accuracy")
    experiment = more.pop("experiment", None)
    return Journal(RECIPE, RunOptions(tracking_uri=store, experiment=experiment), unused, unused, **more)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, dict[str, Any]]]:
    """What was opened, in order."""
    found: list[tuple[Path, dict[str, Any]]] = []
    for place in (module, run):
        monkeypatch.setattr(place, "open_run", lambda folder, **told: found.append((folder, told)))
    return found


def test_the_address_names_store_and_experiment_without_a_password() -> None:
    assert journal("http://me:pass-of-a-test@example.invalid:5000", experiment="e").address().endswith(" e")
    assert "pass-of-a-test" not in journal("http://me:pass-of-a-test@example.invalid:5000").address()
    assert journal("sqlite:////tmp/a.db").address() == "sqlite:////tmp/a.db compress"


def test_a_store_is_there_unless_its_database_is_gone(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert not journal(uri).has_store()
    (tmp_path / "mlflow.db").touch()
    assert journal(uri).has_store()
    assert journal("http://example.invalid:5000").has_store(), "a server cannot be seen from here"


def test_its_own_run_names_the_recipe_and_stands_below_its_parent(opened: list[tuple[Path, dict[str, Any]]]) -> None:
    above = Parent("key", "seeds")
    journal("sqlite:///a.db", parent=above, tags={"compress.seed": "3"}).open(
        Path("runs/one"), method="prune_layers", role="student"
    )
    ((folder, told),) = opened
    assert (folder, told["name"], told["parent"], told["experiment"]) == (Path("runs/one"), "one", above, "compress")
    assert told["tags"] == {"compress.recipe": "x", "compress.recipe_sha": RECIPE.hash(), "compress.seed": "3"}
    assert (told["method"], told["role"], told["quality"]) == ("prune_layers", "student", "accuracy")


def test_a_child_is_in_the_experiment_and_store_of_the_run_above(opened: list[tuple[Path, dict[str, Any]]]) -> None:
    log: Any = SimpleNamespace(
        folder=Path("runs/one"), experiment="other", key="k", parent=Parent("k", "other"), store="its store"
    )
    journal("sqlite:///a.db").child(log, Path("runs/one/stages/0-cut"), method="cut", role="stage")
    ((_, told),) = opened
    assert (told["name"], told["experiment"], told["store"]) == ("one/0-cut", "other", "its store")
    assert told["parent"] == log.parent
    assert told["tags"] == {"compress.recipe": "x", "compress.parent_run": "k"}

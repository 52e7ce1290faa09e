"""`compress prune-layers`: how many rounds it makes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compress.cli import prune_layers
from compress.errors import UserError
from compress.modelfolder import folder
from compress.run import teachers

DEPTHS = {"large": 12, "small": 6, "other": 6}


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teachers, "teacher_recipe", lambda *_: None)
    monkeypatch.setattr(teachers, "teacher_folder", str)
    found: Any = lambda name: SimpleNamespace(config=SimpleNamespace(depth=DEPTHS[name]))  # noqa: E731
    monkeypatch.setattr(folder, "inspect", found)


def count_layers(teacher: str | None, *swept: str) -> int:
    recipe: Any = SimpleNamespace(teacher=teacher, sweep={"teacher": swept} if swept else None)
    nothing: Any = None
    return prune_layers._depth(recipe, nothing, nothing)


def test_layers_are_those_of_the_model_that_is_pruned() -> None:
    assert count_layers("large") == 12
    assert count_layers("large", "small", "other") == 6, "the models of a sweep take its place"
    with pytest.raises(UserError, match="MODEL: a model is required"):
        count_layers(None)


def test_the_models_of_a_sweep_need_as_many_rounds() -> None:
    with pytest.raises(UserError) as caught:
        count_layers("large", "large", "small")
    assert caught.value.line() == (
        "--layers-per-round: the models of the sweep differ in their number of layers: large: 12, small: 6; run the "
        "command once for each model"
    )

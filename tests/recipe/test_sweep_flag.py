"""`--sweep KEY=V1,V2`: the grid that several of them are."""

from __future__ import annotations

import pytest

from compress.errors import UserError
from compress.recipe import LoadedRecipe, parse_sweep


def test_values_are_read_as_in_a_recipe() -> None:
    found = parse_sweep(["stages.0.training.learning_rate=1e-4, 3e-4", "a.b=[0, 2],[0, 1, 2]", "c=x"])
    assert found.path == "sweep"
    assert found.value == {"stages.0.training.learning_rate": [1e-4, 3e-4], "a.b": [[0, 2], [0, 1, 2]], "c": ["x"]}


def test_it_takes_the_place_of_the_grid_of_a_recipe() -> None:
    loaded = LoadedRecipe.read("share-sweep", [parse_sweep(["stages.0.pattern.groups=3,2"])])
    assert loaded.recipe.sweep == {"stages.0.pattern.groups": (3, 2)}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["stages.0.x"], "--sweep stages.0.x: not of the form key=value,value; e.g. --sweep"),
        (["=1,2"], "not of the form key=value,value"),
        (["a="], "not of the form key=value,value"),
        (["a=1", "a=2"], "a is given twice; list all of its values in one --sweep"),
        (["a=1,2,1"], "the value 1 is listed twice"),
        (["a=[1"], "--sweep a=[1"),
    ],
)
def test_what_is_no_grid_is_one_line(texts: list[str], said: str) -> None:
    with pytest.raises(UserError) as found:
        parse_sweep(texts)
    assert said in found.value.line()

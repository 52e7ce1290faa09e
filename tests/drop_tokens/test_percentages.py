"""Percentages that are given: what is rejected before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from compress.contracts import Override
from compress.errors import UserError
from compress.recipe import load_recipe
from compress.stages.drop_tokens.spec import Spec
from compress.stages.drop_tokens.stage import Stage
from compress.stages.prune_layers.stage import Stage as Layers
from compress.stages.shared.model_shape import ModelShape


@dataclass
class Context:
    precision: str = "fp32"


def make_spec(kept: Any) -> Spec:
    edits = (("max_drop", None), ("keep_tokens", kept))
    made = load_recipe("drop-tokens", [Override(f"stages.0.{key}", value, "--keep-tokens") for key, value in edits])
    assert isinstance(made.stages[0], Spec)
    return made.stages[0]


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (0, "found 0, allowed: percentages from 1 to 100"),
        (150, "found 150, allowed"),
        ([50, 50, -1, 50], "found 50, 50, -1, 50, allowed"),
        ([50, 75, 50, 50], "found 50, 75, 50, 50, but a layer cannot keep more tokens than the layer before"),
        (100, "all tokens would be kept; give a percentage below 100"),
        ([], "all tokens would be kept"),
    ],
)
def test_percentages_that_no_model_takes(kept: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"--keep-tokens.*{message}") as it:
        make_spec(kept)
    assert "stages.0.keep_tokens" in str(it.value)
    assert "\n" not in str(it.value)


def test_as_many_percentages_as_layers() -> None:
    def plan(kept: Any, depth: int) -> ModelShape | None:
        context: Any = Context()
        return Stage(make_spec(kept), context).plan_shape(None, ModelShape(depth, 32), None)

    for kept in (50, [50], [100, 50, 50, 25]):
        assert plan(kept, 4) == ModelShape(4, 32)
    message = "keep_tokens: found 2 percentages, the model has 4 layers; give 4, one for each layer, or a single one"
    with pytest.raises(UserError, match=message):
        plan([50, 20], 4)
    with pytest.raises(UserError, match="the model has 1 layer; give one"):
        plan([50, 20], 1)


def test_a_list_after_a_cut_whose_size_is_not_known() -> None:
    context: Any = Context()
    edits = [Override(f"stages.0.{key}", value, "--max-drop") for key, value in (("keep", None), ("max_drop", 1.0))]
    cut: Any = load_recipe("prune-layers", edits).stages[0]
    shape = Layers(cut, context).plan_shape(None, ModelShape(6, 32), None)
    assert shape == ModelShape(6, 32, depth_known=False)
    assert Stage(make_spec(50), context).plan_shape(shape, None, None) == shape
    with pytest.raises(UserError, match=r"keep_tokens: a list .* needs a known number of layers: a stage before"):
        Stage(make_spec([100, 50, 50, 50, 50, 50]), context).plan_shape(shape, None, None)

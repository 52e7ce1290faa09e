"""What a recipe becomes: extends, overrides, hashes, the resolved file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from compress.contracts import Override, list_set_values
from compress.errors import UserError
from compress.recipe import Recipe, find_recipe, json_schema, list_recipes, load_recipe, parse_override
from compress.recipe.library import names

TINY: dict[str, Any] = {
    "name": "tiny",
    "corpus": {"source": "opinions-corpus"},
    "data": {"source": "opinions"},
    "stages": [
        {"kind": "tokenizer"},
        {
            "kind": "pretrain",
            "encoder": {"layers": 2, "hidden": 32, "heads": 2, "intermediate_size": 64},
            "training": {"steps": 10},
        },
        {"kind": "finetune", "training": {"epochs": 1, "betas": [0.9, 0.98]}},
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def with_sets(*texts: str) -> Recipe:
    return load_recipe(TINY, [parse_override(text) for text in texts])


# --- extends ----------------------------------------------------------------------------------------------------


def test_extends_merges_mappings_and_replaces_lists(folder: Path) -> None:
    (folder / "base.yaml").write_text("a: 1\nexpected: {a: 1, b: {c: 2, d: 3}}\nstages: [1, 2]\n")
    (folder / "child.yaml").write_text("extends: base.yaml\nexpected: {b: {c: 4}, e: 5}\nstages: [3]\n")
    from compress.recipe.compose import compose

    merged = compose("./child.yaml").plain()
    assert merged == {
        "a": 1,
        "expected": {"a": 1, "b": {"c": 4, "d": 3}, "e": 5},
        "stages": [3],
        "name": "child",
    }


def test_a_mapping_over_a_list_changes_the_items_at_its_keys(folder: Path) -> None:
    text = "extends: teacher\nstages:\n  1:\n    masking: {strategy: static}\n    encoder:\n      layers: 2\n"
    (folder / "child.yaml").write_text(text)
    recipe, base = load_recipe("./child.yaml"), load_recipe("teacher")
    assert (recipe.stages[1].masking.strategy, recipe.stages[1].encoder.layers) == ("static", 2)
    assert recipe.stages[1].encoder.hidden == base.stages[1].encoder.hidden
    assert (recipe.stages[0], recipe.stages[2]) == (base.stages[0], base.stages[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "{7: {kind: tokenizer}}",
            "x.yaml:2:10: stages.7: no such stage: stages count from 0: 0-tokenizer, 1-pretrain, 2-finetune",
        ),
        (
            "{lat: {}}",
            "x.yaml:2:10: stages.lat: 'lat' is no stage; known: 0-tokenizer, 1-pretrain, 2-finetune, "
            "finetune, pretrain, "
            "tokenizer",
        ),
        ("{1: {maskin: {}}}", "x.yaml:2:14: stages.1.maskin: unknown key; did you mean 'masking'?"),
    ],
)
def test_a_change_that_leads_nowhere(change: str, message: str, folder: Path) -> None:
    (folder / "x.yaml").write_text(f"extends: teacher\nstages: {change}\n")
    with pytest.raises(UserError) as caught:
        load_recipe("./x.yaml")
    assert str(caught.value) == message


def test_extends_is_relative_to_the_file_and_reaches_shipped_recipes(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "base.yaml").write_text("extends: teacher\nseed: 7\nname: base\n")
    (folder / "sub" / "child.yaml").write_text("extends: base.yaml\ndescription: mine\n")
    recipe = load_recipe("sub/child.yaml")
    assert (recipe.seed, recipe.name, recipe.description) == (7, "child", "mine")
    assert recipe.stages == load_recipe("teacher").stages


def test_a_mapping_can_extend_a_shipped_recipe() -> None:
    recipe = load_recipe({"extends": "teacher", "name": "mine", "seed": 3})
    assert recipe == load_recipe("teacher", [Override("seed", 3, ""), Override("name", "mine", "")]).model_copy()


# --- overrides --------------------------------------------------------------------------------------------------


def test_overrides_reach_lists_blocks_and_every_item() -> None:
    recipe = with_sets(
        "stages.1.training.learning_rate=1e-4",
        "stages.*.training.precision=bf16",
        "data.limit=10",
        "teacher=teacher",
        "evaluation.latency={length: 64}",
    )
    assert recipe.stages[1].training.learning_rate == 1e-4
    assert [s.training.precision for s in recipe.stages[1:]] == ["bf16", "bf16"]
    assert recipe.data is not None
    assert recipe.data.limit == 10
    assert recipe.teacher == "teacher"
    assert recipe.evaluation.latency.length == 64


def test_an_override_can_make_a_block_and_take_one_away() -> None:
    bare = {"name": "x", "stages": [TINY["stages"][2]]}
    recipe = load_recipe(bare, [parse_override("data.source=opinions"), parse_override("data.label_column=y")])
    assert recipe.data is not None
    assert recipe.data.label_column == "y"
    assert with_sets("data.limit=5", "data.limit=null") == with_sets()


def test_the_last_override_wins_and_lists_items_can_be_replaced() -> None:
    assert with_sets("seed=1", "seed=2").seed == 2
    only = with_sets("stages.0={kind: tokenizer, vocabulary_size: 300}")
    assert only.stages[0].vocabulary_size == 300


def test_overrides_that_may_lead_nowhere() -> None:
    bare = {"name": "x", "corpus": {"source": "opinions-corpus"}, "stages": [{"kind": "tokenizer"}]}
    flag = Override("stages.*.training.precision", "bf16", "--precision bf16", required=False)
    assert load_recipe(bare, [flag]) == load_recipe(bare)


# --- what comes out ---------------------------------------------------------------------------------------------


def test_a_recipe_is_frozen() -> None:
    recipe = with_sets()
    with pytest.raises(ValidationError, match="frozen"):
        recipe.seed = 2  # type: ignore[misc]


@pytest.mark.parametrize("name", names())
def test_the_resolved_recipe_loads_back_equal(name: str, folder: Path) -> None:
    recipe = load_recipe(name)
    (folder / "again.yaml").write_text(recipe.dump_yaml(), encoding="utf-8")
    again = load_recipe("./again.yaml")
    assert again == recipe
    assert again.hash() == recipe.hash()


def test_the_hash_counts_what_changes_results_and_no_prose() -> None:
    base = with_sets()
    assert base.hash() == with_sets("description=other words", "expected=90", "name=other").hash()
    for change in ("seed=5", "data.limit=7", "stages.2.training.epochs=2", "teacher=x", "model=y"):
        assert with_sets(change).hash() != base.hash(), change


def test_hashes_do_not_drift() -> None:
    """A changed hash makes every cached teacher run again: raise HASH_VERSION when that is meant."""
    recipe = load_recipe({"name": "x", "corpus": {"source": "c"}, "stages": [{"kind": "tokenizer"}]})
    assert recipe.hash() == load_recipe({**recipe.model_dump(mode="json")}).hash()
    assert recipe.hash() == "5a2eb10d01b847f51e7cdfde54298486267ac74d7190455c2a341788eeb16449"


# --- finding ----------------------------------------------------------------------------------------------------


def test_recipes_are_found_by_name_and_by_path(folder: Path) -> None:
    assert find_recipe("teacher").name == "teacher.yaml"
    (folder / "teacher.yaml").write_text("x: 1")
    assert find_recipe("teacher") != folder / "teacher.yaml"
    assert find_recipe("./teacher.yaml").resolve() == (folder / "teacher.yaml").resolve()
    assert find_recipe("teacher.yaml").resolve() == (folder / "teacher.yaml").resolve()


def test_the_list_says_what_recipes_are() -> None:
    entries = {entry.name: entry for entry in list_recipes()}
    assert {"teacher", "distilbert", "distilbert-task", "smoke"} <= entries.keys()
    assert entries["smoke"].method == "distill"  # inherited
    assert all(entry.description for entry in entries.values())


def test_the_schema_knows_every_stage_and_objective() -> None:
    schema = json_schema()
    whole, changes = schema["properties"]["stages"]["anyOf"]
    assert changes["propertyNames"] == {"pattern": "^[0-9]+$"}
    stages = whole["items"]["oneOf"]
    kinds = {stage["properties"]["kind"]["const"]: stage for stage in stages}
    assert {"tokenizer", "pretrain", "finetune", "distill"} <= kinds.keys()
    rows = kinds["distill"]["properties"]["objectives"]["items"]["oneOf"]
    temperature = {row["properties"]["kind"]["const"]: row for row in rows}["soft_targets"]["properties"]["temperature"]
    assert temperature["exclusiveMinimum"] == 0
    assert schema["additionalProperties"] is False


def test_what_set_changed_is_told_apart_from_flags() -> None:
    overrides = [Override("seed", 3, "--seed 3"), Override("sweep", None, "--set sweep=null")]
    overrides += [parse_override("stages.0.training.steps=5"), parse_override("stages.0.training.steps=6")]
    assert list_set_values(overrides) == {"stages.0.training.steps": 6}, "the last word, as in the recipe"

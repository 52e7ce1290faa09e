"""Keys and values with a new name: the old one works and warns once, and no hash changes."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from compress.errors import UserError
from compress.recipe import as_before, current_kind, load_recipe, parse_override, renames
from compress.recipe.library import names

BEFORE = {
    "albert": "dc68bef9ff65cf14a94ec3e37e571d80391db572ab6f9b188c9b2a48277c13fb",
    "factorize": "8410886711a4958ce5cb0c534ae0cb868bc98652e100daf3081683fd9d464abe",
    "multi-teacher": "30e8e363fcf828b5f553ed39f2a3dfffc526e59fbdd5cf6bbd80e6fc9a6e3bbd",
    "prune-layers": "e53013ea352391d90f1323d75d895298f0138d67614af348f13698ee1f947872",
    "prune-vocab": "1812f39b04ef70d09c3b75c74b73957dc47485b8da03c63d510284aa524908bf",
    "prune-width": "6c1f91d203a42ae88ecbf40bec9a7964f7471e12122ef91a5c1747a120db674e",
    "qat": "3cf732a89175c5cde713c08157e3928242a60db13c697489bda53964613ba83d",
    "share-gradual": "84b900ed84fe66a608bfeed360a3697be5af810ebf8153927cc2ebcf9436f207",
    "share-pull": "eb884647f3615416daa147534af556cece675e3d0c5ded3d146f346ff8e6f85c",
    "sparsify": "c3dd6838e37cf897457256efa8e5619390cbd02aaf28673002346d74d022ab07",
    "tinybert-task": "5e9e248b9e008883c8bb8a61d37f4ca18699a7bdbf0de4b86c332b8253b46322",
}
"""Hashes of shipped recipes before any key was renamed."""

BOTH = {"epochs": 1, "learning_rate": 5e-5}
FIXED = {
    "factorize": {"epochs": 1},
    "sparsify": {"epochs": 1},
    "prune-width": {"epochs": 1},
    "multi-teacher": BOTH,
    "prune-layers": BOTH,
    "tinybert-task": BOTH,
}
"""What the last stage of these recipes said at that time, before its length became automatic."""

LAYERS = {
    "multi-teacher": ["stages.0.student.layers=[1,3,5]"],
    "prune-layers": ["stages.0.keep=3", "stages.1.augmentation=null", "stages.1.use_unlabelled=false"],
    "tinybert-task": ["stages.0.student.layers=[1,3,5]"],
}
"""What these said, before they kept half of any number of layers and trained on text or copies of few rows."""

STAGES = {
    ("albert-small", 0): "2512adc0c2e8a86abea41d9c4105c49c13678dead0e5ba7d15cd8998605b79aa",
}
"""sha256 of stages in the checkpoints of runs of that time."""

DISTILL = {"kind": "distill", "objectives": [{"kind": "soft_targets"}], "training": {"steps": 1}}
SHARE = {"kind": "share", "pattern": {"kind": "all"}}


def recipe(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"name": "x", "data": {"source": "opinions"}, "corpus": {"source": "opinions-corpus"}, "stages": [*stages]}


@pytest.fixture(autouse=True)
def _nothing_warned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(renames, "_warned", set())
    caplog.set_level(logging.WARNING, "compress.recipe")


@pytest.mark.parametrize(("name", "sha"), BEFORE.items(), ids=BEFORE)
def test_a_shipped_recipe_hashes_as_before(name: str, sha: str) -> None:
    last = len(load_recipe(name).stages) - 1
    said = [f"stages.{last}.training.{key}={value}" for key, value in FIXED.get(name, {}).items()]
    said += LAYERS.get(name, [])
    assert load_recipe(name, [parse_override(one) for one in said]).hash() == sha


@pytest.mark.parametrize(("name", "place"), STAGES)
def test_a_checkpoint_of_an_older_run_still_fits(name: str, place: int) -> None:
    stage = load_recipe(name).stages[place]
    said = json.dumps(as_before(stage.model_dump(mode="json"), stage.kind), sort_keys=True)
    assert hashlib.sha256(said.encode()).hexdigest() == STAGES[name, place]


@pytest.mark.parametrize("name", names())
def test_a_shipped_recipe_uses_new_names(name: str, caplog: pytest.LogCaptureFixture) -> None:
    load_recipe(name)
    assert not caplog.messages


@pytest.mark.parametrize("name", names())
def test_the_stored_recipe_of_an_older_run_is_the_same_recipe(name: str) -> None:
    now = load_recipe(name)
    old = load_recipe(as_before(now.model_dump(mode="json")))
    assert old == now
    assert old.hash() == now.hash()


def test_the_old_name_works_and_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps(recipe({**SHARE, "own_vectors": False}, {**DISTILL, "level": "task"}), indent=1))
    for _ in range(2):
        share, distill = load_recipe(path).stages
        assert (share.share_norms_and_biases, distill.level) == (True, "task_specific")
    assert [text.removeprefix(str(path)) for text in caplog.messages] == [
        ":15:4: the recipe key 'own_vectors' is now 'share_norms_and_biases'; the old name works until the next "
        "release",
        ":27:13: 'level: task' is now 'level: task_specific'; the old name works until the next release",
    ]


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("stages.0.own_vectors=false", True),
        ("stages.*.own_vectors=true", False),
        ("stages.0.share_norms_and_biases=true", True),
        ("stages.0={kind: share, pattern: {kind: all}, own_vectors: false}", True),
        ("stages=[{kind: share, pattern: {kind: all}, own_vectors: false}]", True),
    ],
)
def test_an_override_may_use_either_name(override: str, value: bool) -> None:
    made = load_recipe(recipe({**SHARE, "share_norms_and_biases": not value}), [parse_override(override)])
    assert made.stages[0].share_norms_and_biases is value


def test_an_old_name_replaces_the_new_one_of_the_recipe_it_extends(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(json.dumps(recipe({**SHARE, "share_norms_and_biases": False}), indent=1))
    (tmp_path / "x.yaml").write_text("extends: base.yaml\nstages: {0: {own_vectors: false, level: corpus}}\n")
    stage = load_recipe(tmp_path / "x.yaml").stages[0]
    assert (stage.share_norms_and_biases, stage.level) == (True, "general")


def test_both_names_together_are_an_error() -> None:
    both = {**SHARE, "own_vectors": True, "share_norms_and_biases": False}
    with pytest.raises(UserError) as caught:
        load_recipe(recipe(both))
    assert caught.value.line() == (
        "recipe: own_vectors and share_norms_and_biases are the same key; keep share_norms_and_biases"
    )


def test_a_value_of_the_wrong_type_is_still_an_error() -> None:
    with pytest.raises(UserError, match=r"share_norms_and_biases: found 1, allowed: true or false"):
        load_recipe(recipe({**SHARE, "own_vectors": 1}))


def test_a_flag_may_name_a_part_by_its_old_name(caplog: pytest.LogCaptureFixture) -> None:
    assert current_kind("compress.stages.prune_width.importance", "surgeon", "--importance") == "obs"
    assert caplog.messages == [
        "--importance: 'kind: surgeon' is now 'kind: obs'; the old name works until the next release"
    ]

"""Stages as a chain: what a person calls one, who teaches each, which orders are refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from compress.errors import UserError
from compress.recipe import Recipe, load_recipe
from compress.run import chain

ANSWERS = [{"kind": "soft_targets", "on": "task"}]
TRAINING = {"steps": 2}
CUT = {
    "kind": "distill",
    "level": "task_specific",
    "student": {"layers": [0, 2]},
    "objectives": ANSWERS,
    "training": TRAINING,
}
RECOVER = {**CUT, "student": None}
LAYERS = {"kind": "prune_layers", "drop": 1}
WIDTH = {"kind": "prune_width", "ratio": 0.5}
VOCABULARY = {"kind": "prune_vocab", "coverage": 99.9}
SHARE = {"kind": "share", "pattern": {"kind": "all"}, "embedding": {"size": 8}}
FACTORIZE = {"kind": "factorize", "ratio": 0.5}
SPARSIFY = {"kind": "sparsify"}
DROP = {"kind": "drop_tokens", "keep_tokens": 50}
QUANTIZE = {"kind": "quantize", "scheme": "per-token"}
EXPORT = {"kind": "export"}
FINETUNE = {"kind": "finetune", "training": TRAINING}


def recipe(*stages: dict[str, Any], **more: Any) -> Recipe:
    return load_recipe({"name": "x", "teacher": "t", "data": {"source": "d"}, "stages": list(stages), **more})


def tutors(*stages: dict[str, Any], **more: Any) -> list[chain.TeacherSource]:
    made = recipe(*stages, **more)
    places = range(len(stages))
    return [chain.find_teacher_source(made, places, i) for i in places if made.stages[i].kind == "distill"]


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "place"), [("1", 1), ("prune_vocab", 1), ("prune-vocab", 1), ("1-prune_vocab", 1), ("0-distill", 0)]
)
def test_a_stage_is_meant_by_number_kind_or_name(asked: str, place: int) -> None:
    assert chain.find(recipe(CUT, VOCABULARY, RECOVER), [0, 1, 2], asked, "--until") == place


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("quantise", "did you mean 'quantize'?"),
        ("9", "its stages: 0-distill, 1-quantize, 2-distill"),
        ("distill", "--until distill: 2 stages have kind distill; name one: 0-distill, 2-distill"),
        ("2-distil", "did you mean '2-distill'?"),
    ],
)
def test_a_stage_that_is_not_there(asked: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        chain.find(recipe(CUT, QUANTIZE, RECOVER), [0, 1, 2], asked, "--until")
    assert said in refused.value.line()


# --- who teaches --------------------------------------------------------------------------------------------------


def test_the_named_teacher_stands_for_the_first_model() -> None:
    assert tutors(CUT) == ["teacher"]
    assert tutors(LAYERS, RECOVER) == ["teacher"]
    assert tutors(LAYERS, RECOVER, model="m") == ["teacher"], "whoever names a teacher wants to be taught by it"
    assert tutors(LAYERS, RECOVER, model="m", teacher=None) == ["first"]


def test_what_is_cut_teaches() -> None:
    assert tutors(FINETUNE, CUT, teacher=None) == [0]
    assert tutors(CUT, CUT) == ["teacher", 0]
    assert tutors(VOCABULARY, CUT) == [0]


def test_a_recovery_is_taught_by_the_model_as_it_was() -> None:
    assert tutors(CUT, LAYERS, WIDTH, RECOVER) == ["teacher", 0]
    assert tutors(LAYERS, RECOVER, SHARE, RECOVER) == ["teacher", 1]
    assert tutors(CUT, VOCABULARY, LAYERS, RECOVER) == ["teacher", 1], "of the vocabulary that the student has"
    assert tutors(CUT, VOCABULARY, RECOVER) == ["teacher", 0]


def test_who_goes_on_has_the_same_teacher() -> None:
    assert tutors(FINETUNE, CUT, RECOVER, teacher=None) == [0, 0]
    assert tutors(CUT, RECOVER) == ["teacher", "teacher"]


def test_a_recipe_can_say_it() -> None:
    said = {**RECOVER, "taught_by": "first"}
    assert tutors(CUT, LAYERS, said, model="m") == ["teacher", "first"]
    assert tutors(FINETUNE, CUT, LAYERS, said, teacher=None) == [0, 0]
    assert tutors(CUT, LAYERS, {**RECOVER, "taught_by": "teacher"}) == ["teacher", "teacher"]
    assert tutors(LAYERS, {**RECOVER, "taught_by": "parent"}, model="m") == ["first"]


def test_shipped_recipes_are_taught_as_before_chains() -> None:
    for name in ("tinybert", "share-gradual", "share-pull", "qat", "prune-layers", "distilbert"):
        made = load_recipe(name)
        places = range(len(made.stages))
        assert {chain.find_teacher_source(made, places, i) for i in places} == {"teacher"}, name


def test_no_teacher_is_asked_for_where_the_chain_has_its_own() -> None:
    assert not chain.asks_teacher(recipe(FINETUNE, CUT, QUANTIZE, teacher=None), [0, 1, 2])
    assert not chain.asks_teacher(recipe(LAYERS, RECOVER, teacher=None, model="m"), [0, 1])
    assert chain.asks_teacher(recipe(LAYERS, RECOVER, teacher=None), [0, 1])


# --- orders -------------------------------------------------------------------------------------------------------


REFUSED = [
    ((QUANTIZE, LAYERS), "1-prune_layers cannot come after 0-quantize", "cutting it needs float weights"),
    ((QUANTIZE, RECOVER, VOCABULARY), "2-prune_vocab cannot come after 0-quantize", "cutting its vocabulary"),
    ((CUT, QUANTIZE, WIDTH), "2-prune_width cannot come after 1-quantize", "cutting it"),
    ((QUANTIZE, QUANTIZE), "1-quantize cannot come after 0-quantize", "quantizing it again"),
    ((QUANTIZE, SHARE), "1-share cannot come after 0-quantize", "sharing its layers"),
    ((QUANTIZE, FACTORIZE), "1-factorize cannot come after 0-quantize", "factorizing it"),
    ((FACTORIZE, FACTORIZE), "1-factorize cannot come after 0-factorize", "low-rank factors already"),
    ((FACTORIZE, SHARE), "1-share cannot come after 0-factorize", "low-rank factors already"),
    ((FACTORIZE, WIDTH), "1-prune_width cannot come after 0-factorize", "low-rank factors already"),
    ((SPARSIFY, WIDTH), "1-prune_width cannot come after 0-sparsify", "break the pattern; sparsify last"),
    ((SPARSIFY, FACTORIZE), "1-factorize cannot come after 0-sparsify", "break the pattern; use only one of the two"),
    ((FACTORIZE, SPARSIFY), "1-sparsify cannot come after 0-factorize", "low-rank factors already"),
    ((SPARSIFY, SPARSIFY), "1-sparsify cannot come after 0-sparsify", "break the pattern; sparsify last, and only"),
    ((SPARSIFY, SHARE), "1-share cannot come after 0-sparsify", "sharing its layers would break the pattern"),
    ((SHARE, SPARSIFY), "1-sparsify cannot come after 0-share", "have their own parameters"),
    ((QUANTIZE, SPARSIFY), "1-sparsify cannot come after 0-quantize", "making it sparse"),
    ((SHARE, FACTORIZE), "1-factorize cannot come after 0-share", "have their own parameters"),
    ((SHARE, SHARE), "1-share cannot come after 0-share", "factorized already"),
    ((EXPORT, QUANTIZE), "1-quantize cannot come after 0-export", "export last"),
    ((DROP, DROP), "1-drop_tokens cannot come after 0-drop_tokens", "choosing them again"),
    ((DROP, FACTORIZE), "1-factorize cannot come after 0-drop_tokens", "factorizing its matrices"),
    ((DROP, LAYERS), "1-prune_layers cannot come after 0-drop_tokens", "removing layers"),
    ((DROP, WIDTH), "1-prune_width cannot come after 0-drop_tokens", "cutting heads"),
    ((DROP, SHARE), "1-share cannot come after 0-drop_tokens", "sharing layers"),
    ((LAYERS, {**CUT, "taught_by": "teacher"}), "1-distill discards the result of 0-prune_layers", "a different model"),
    ((LAYERS, {**CUT, "student": {"model": "c"}}), "1-distill discards the result", "its own checkpoint, c"),
]


@pytest.mark.parametrize(("stages", "what", "why"), REFUSED)
def test_an_order_that_makes_no_sense_is_refused(stages: tuple[dict[str, Any], ...], what: str, why: str) -> None:
    with pytest.raises(UserError) as refused:
        chain.check_order(recipe(*stages), range(len(stages)), None)
    assert what in refused.value.line()
    assert why in refused.value.line()


@pytest.mark.parametrize(
    "stages",
    [
        (FINETUNE, CUT, LAYERS, WIDTH, VOCABULARY, RECOVER, FACTORIZE, QUANTIZE, RECOVER, EXPORT),
        (CUT, VOCABULARY, SHARE, RECOVER, QUANTIZE),
        (SHARE, LAYERS, RECOVER, QUANTIZE),
        (QUANTIZE, RECOVER),
        (SHARE, {**SHARE, "reuse_input": True, "embedding": None}, RECOVER),
    ],
)
def test_other_orders_are_not(stages: tuple[dict[str, Any], ...]) -> None:
    chain.check_order(recipe(*stages), range(len(stages)), None)


def test_the_pairs_that_are_refused_are_those_of_the_stages() -> None:
    """tests/e2e/test_pairs_of_verbs.py runs every pair; here they are refused before anything runs."""
    import ast
    from pathlib import Path

    text = (Path(__file__).parents[1] / "e2e/test_pairs_of_verbs.py").read_text(encoding="utf-8")
    nodes = [n for n in ast.parse(text).body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "REFUSED"]
    ours = {(one[0]["kind"], one[-1]["kind"]) for one, *_ in REFUSED if len(one) == 2}
    theirs = {ast.literal_eval(key) for key in nodes[0].value.keys if key is not None}  # type: ignore[attr-defined]
    assert theirs - ours == {("quantize", "prune_vocab"), ("quantize", "prune_width")}, "with a stage between above"

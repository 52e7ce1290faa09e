"""A validation error becomes one line: where it stands, what was found and allowed, and the nearest right thing."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import Field, ValidationError

from compress.contracts import ListOf
from compress.contracts.recipe import Frozen
from compress.errors import UserError
from compress.recipe.document import Value, parse
from compress.recipe.explain import explain, explain_unknown_key, format_key_path, locate


class Inner(Frozen):
    size: int
    name: str = Field(default="a", min_length=1)


class Outer(Frozen):
    steps: int = Field(default=1, ge=1, lt=100)
    rate: float = Field(default=0.5, gt=0)
    on: bool = True
    mode: Literal["fast", "slow"] = "fast"
    items: ListOf[int] = Field(default=(1,), min_length=1, max_length=2)
    inner: Inner | None = None


def read(text: str) -> Value:
    found = parse(text, "r.yaml")
    assert found is not None
    return found


def error_of(text: str) -> str:
    root = read(text)
    with pytest.raises(ValidationError) as error:
        Outer.model_validate(root.plain())
    found = explain(error.value, root)
    assert isinstance(found, UserError)
    return str(found)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("step: 2", "r.yaml:1:1: step: unknown key; did you mean 'steps'?"),
        ("steps: 0", "r.yaml:1:8: steps: found 0, allowed: >= 1"),
        ("steps: 100", "r.yaml:1:8: steps: found 100, allowed: < 100"),
        ("steps: '7'", "r.yaml:1:8: steps: found the text '7', allowed: a whole number; write 7"),
        ("steps: many", "r.yaml:1:8: steps: found the text 'many', allowed: a whole number"),
        ("rate: 0", "r.yaml:1:7: rate: found 0, allowed: > 0"),
        ("rate: '0.5'", "r.yaml:1:7: rate: found the text '0.5', allowed: a number; write 0.5"),
        ("rate: '1e300'", "r.yaml:1:7: rate: found the text '1e300', allowed: a number"),
        ("rate: 'nan'", "r.yaml:1:7: rate: found the text 'nan', allowed: a number"),
        ("on: 'yes'", "r.yaml:1:5: on: found the text 'yes', allowed: true or false; write true"),
        ("on: 'OFF'", "r.yaml:1:5: on: found the text 'OFF', allowed: true or false; write false"),
        ("on: 1", "r.yaml:1:5: on: found 1, allowed: true or false"),
        ("mode: fats", "r.yaml:1:7: mode: found the text 'fats', allowed: fast, slow; did you mean 'fast'?"),
        ("mode: 3", "r.yaml:1:7: mode: found 3, allowed: fast, slow"),
        ("items: []", "r.yaml:1:8: items: found 0 items, allowed: at least 1"),
        ("items: [1, 2, 3]", "r.yaml:1:8: items: found 3 items, allowed: at most 2"),
        ("items: 1", "r.yaml:1:8: items: found 1, allowed: a list"),
        ("items:\n- 1\n- x", "r.yaml:3:3: items.1: found the text 'x', allowed: a whole number"),
        ("inner:\n  size: 1\n  name: ''", "r.yaml:3:9: inner.name: found an empty text"),
        ("inner:\n  size: 1\n  name: 2", "r.yaml:3:9: inner.name: found 2, allowed: text; quote it: '2'"),
        ("steps: 1\ninner:\n  name: b", "r.yaml:2:1: inner.size: missing key; add `size:`"),
        ("inner: 3", "r.yaml:1:8: inner: found 3, allowed: a mapping"),
    ],
)
def test_one_problem(text: str, line: str) -> None:
    assert error_of(text) == line


def test_a_misspelt_key_comes_before_what_it_causes() -> None:
    """`siz` is why `size` is missing, and it stands below another problem."""
    assert error_of("steps: 0\ninner: {siz: 1}") == (
        "r.yaml:2:9: inner.siz: unknown key; did you mean 'size'? (and 1 more problem)"
    )


def test_others_are_counted_in_the_order_of_the_file() -> None:
    assert error_of("rate: 0\non: 3\nsteps: 0") == "r.yaml:1:7: rate: found 0, allowed: > 0; and 2 more problems"


def test_a_list_is_not_called_short_because_its_items_are_wrong() -> None:
    assert error_of("items: [x]") == "r.yaml:1:9: items.0: found the text 'x', allowed: a whole number"


def test_a_block_that_was_validated_alone() -> None:
    root = read("stages:\n- size: x")
    block = locate(root, ("stages", 0))[0].plain()
    with pytest.raises(ValidationError) as error:
        Inner.model_validate(block)
    assert str(explain(error.value, root, ("stages", 0))).startswith("r.yaml:2:9: stages.0.size: found the text 'x'")


@pytest.mark.parametrize(
    ("path", "found", "exists"),
    [
        ((), {"a": [{"b": 1}]}, True),
        (("a", 0, "b"), 1, True),
        (("a", 1), [{"b": 1}], False),
        (("a", 0, "c", "d"), {"b": 1}, False),
        (("a", 0, "b", "c"), 1, False),
    ],
)
def test_the_deepest_value_that_exists(path: tuple[str | int, ...], found: Any, exists: bool) -> None:
    value, whole = locate(read("a: [{b: 1}]"), path)
    assert (value.plain(), whole) == (found, exists)


def test_an_unknown_key_that_no_validation_found() -> None:
    root = read("data:\n  trian: x")
    assert str(explain_unknown_key(("data",), "trian", ["train", "test"], root)) == (
        "r.yaml:2:3: data.trian: unknown key; did you mean 'train'?"
    )
    assert "known: a, b" in str(explain_unknown_key(("data",), "zzzz", ["b", "a"], root))


def test_key_paths_are_printable() -> None:
    assert format_key_path(("stages", 0, "a\nb")) == "stages.0.a\\nb"
    assert format_key_path(()) == ""

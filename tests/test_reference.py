"""docs/reference/ is what docs/build_reference.py makes of the code as it is, and tells of every key what it means."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from types import ModuleType

import pytest
from docpages import GENERATED, ROOT
from test_contracts import PACKAGES

from compress import registry
from compress.cli import main as frame
from compress.recipe.library import names as recipe_names
from compress.recipe.schema import Recipe

NAMES = ("commands.md", "modules.md", "parts.md", "recipes.md")


@cache
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_reference", ROOT / "docs" / "build_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def made() -> dict[str, str]:
    return builder().pages()


def test_the_pages_are_those_that_are_made() -> None:
    assert tuple(sorted(made())) == NAMES
    assert tuple(sorted(path.name for path in GENERATED.iterdir())) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_not_stale(name: str) -> None:
    """A part or recipe that the page does not list yet is no fault: adding one is adding its file, its recipe and a
    test. Its row is written when the pages are next built."""
    page = (GENERATED / name).read_text(encoding="utf-8")
    known = set(_rows(page))
    fresh = [line for line in made()[name].splitlines() if _is_known(line, known)]
    assert page.splitlines() == fresh, f"docs/reference/{name} is stale; run: python docs/build_reference.py"


def _rows(page: str) -> list[str]:
    """The names that head the rows of the page's tables."""
    return re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)


def _is_known(line: str, known: set[str]) -> bool:
    """False for the row of a part or recipe that is not in `known`."""
    return not any(name in ADDED and name not in known for name in _rows(line))


ADDED = {kind for package in PACKAGES for kind in registry.parts(package)} | set(recipe_names())
"""Names that a page has a row for once it is built."""


def test_every_command_and_option_is_told() -> None:
    text = made()["commands.md"]
    for path, command in builder().walk(frame.cli, ("compress",)):
        (section,) = re.findall(rf"^## {' '.join(path)}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
        for names, _, _, meaning in builder().options(command):
            assert max(names.split(", "), key=len) in section, f"{path}: {names}"
            assert meaning, f"{' '.join(path)} {names} has no help"


def test_every_key_of_a_recipe_is_told() -> None:
    text = made()["recipes.md"]
    silent = re.findall(r"^\| (`\w+`) \|.*\| +\|$", text, re.MULTILINE)
    assert silent == [], "give the key a docstring below its line"
    for kind in registry.stages():
        assert f"\n### {kind}\n" in text
    keys = [
        *Recipe.model_fields,
        *(key for kind in registry.stages() for key in registry.stage_spec(kind).model_fields),
    ]
    assert [key for key in keys if key != "kind" and f"| `{key}` |" not in text] == []


def test_every_part_is_told() -> None:
    text = made()["parts.md"]
    assert set(builder().PARTS) == set(PACKAGES)
    for package in PACKAGES:
        for kind in registry.parts(package):
            assert f"| `{kind}` |" in text


def test_it_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert builder().commands() in made()["commands.md"]

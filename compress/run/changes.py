"""What of a recipe differs from the one that a run was started with, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compress.errors import UserError, printable
from compress.recipe import Recipe, load_recipe
from compress.run.results import with_chosen_values


def list_changes(run: Path, recipe: Recipe) -> list[str]:
    """`key old → new` of every value that differs; none where the run's recipe cannot be read. run: its folder."""
    try:
        before = load_recipe(run / "recipe.yaml")
        now = with_chosen_values(recipe, run)  # those that the run chose are in its file too
    except UserError:
        return []
    old, new = dict(_flatten(before.model_dump(mode="json"))), dict(_flatten(now.model_dump(mode="json")))
    keys = [*old, *(key for key in new if key not in old)]
    return [f"{key} {_show(old, key)} → {_show(new, key)}" for key in keys if old.get(key) != new.get(key)]


def _flatten(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its place, as `--set` names it."""
    if isinstance(value, Mapping | list) and value:
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, part in parts:
            yield from _flatten(part, f"{place}.{name}" if place else str(name))
    else:
        yield place, value


def _show(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if value is None:
        return "(none)"
    return printable(str(value).lower() if isinstance(value, bool) else str(value), 40)

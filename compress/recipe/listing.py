"""The shipped recipes as `compress recipes list` shows them. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compress.recipe.compose import compose
from compress.recipe.library import folder, names


@dataclass(frozen=True)
class Entry:
    """One shipped recipe, as the list shows it."""

    name: str
    path: Path
    description: str
    method: str
    experimental: bool = False


def list_recipes() -> list[Entry]:
    """The shipped recipes with what they say about themselves, not validated; experimental ones last."""
    entries = []
    for name in names():
        said = compose(name).plain()
        entries.append(
            Entry(
                name,
                folder() / f"{name}.yaml",
                str(said.get("description", "")),
                str(said.get("method", "")),
                said.get("experimental") is True,
            )
        )
    return sorted(entries, key=lambda entry: entry.experimental)

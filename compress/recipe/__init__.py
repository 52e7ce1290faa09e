"""Recipes: YAML (+ extends, --set) → a frozen `Recipe`; an error names place, key and nearest legal key.

Each name is imported when it is first used: the command line asks for the names of recipes before anything is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compress.recipe.compose import LoadedRecipe, load_recipe, parse_override, parse_sweep
    from compress.recipe.library import find_recipe
    from compress.recipe.listing import Entry, list_recipes
    from compress.recipe.renames import as_before, current_kind
    from compress.recipe.schema import (
        CorpusSpec,
        DataSpec,
        EvaluationSpec,
        LatencySpec,
        Recipe,
        TeacherRow,
        json_schema,
    )

__all__ = [
    "CorpusSpec",
    "DataSpec",
    "Entry",
    "EvaluationSpec",
    "LatencySpec",
    "LoadedRecipe",
    "Recipe",
    "TeacherRow",
    "as_before",
    "current_kind",
    "find_recipe",
    "json_schema",
    "list_recipes",
    "load_recipe",
    "parse_override",
    "parse_sweep",
]


def __getattr__(name: str) -> Any:
    if name in ("LoadedRecipe", "load_recipe", "parse_override", "parse_sweep"):
        from compress.recipe import compose as file
    elif name == "find_recipe":
        from compress.recipe import library as file
    elif name in ("Entry", "list_recipes"):
        from compress.recipe import listing as file
    elif name in ("as_before", "current_kind"):
        from compress.recipe import renames as file
    elif name in __all__:
        from compress.recipe import schema as file
    else:
        raise AttributeError(f"module 'compress.recipe' has no attribute '{name}'")
    return getattr(file, name)

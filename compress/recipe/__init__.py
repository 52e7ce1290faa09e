"""Recipes: YAML (+ extends, --set) → a frozen `Recipe`; an error names place, key and nearest legal key."""

from compress.recipe.compose import LoadedRecipe, load_recipe, parse_override
from compress.recipe.library import find_recipe
from compress.recipe.listing import Entry, list_recipes
from compress.recipe.renames import as_before, current_kind
from compress.recipe.schema import CorpusSpec, DataSpec, EvaluationSpec, LatencySpec, Recipe, TeacherRow, json_schema

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
]

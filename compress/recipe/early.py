"""Mistakes in --set that can be found before torch is imported: wrong keys of stages, blocks without components.

The full validation comes later; it imports the components that the recipe names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import get_args

from pydantic import ValidationError

from compress import registry
from compress.contracts import Frozen
from compress.errors import UserError
from compress.recipe.compose import apply, compose, parse_override
from compress.recipe.document import Value
from compress.recipe.explain import Path, explain, explain_unknown_key, locate
from compress.recipe.schema import CorpusSpec, DataSpec, EvaluationSpec, Recipe

BLOCKS: dict[str, type[Frozen]] = {"data": DataSpec, "corpus": CorpusSpec, "evaluation": EvaluationSpec}


def check_overrides(recipe: str, texts: Sequence[str]) -> None:
    """Raise UserError for what is wrong with `--set` values of this recipe, as far as it can be said early.

    texts: key=value.
    """
    root = compose(recipe)
    for text in texts:
        with suppress(UserError):  # a path that is not there may be one that another flag makes
            apply(root, parse_override(text))
    for error in _errors(root):
        if (error.where or "").startswith("--set "):  # the rest of the recipe may be changed by other flags
            raise error


def _errors(root: Value) -> Iterator[UserError]:
    keys = root.content if isinstance(root.content, dict) else {}
    yield from (
        explain_unknown_key((), key, [*Recipe.model_fields], root) for key in keys.keys() - Recipe.model_fields.keys()
    )
    for name, model in BLOCKS.items():
        yield from _errors_of(root, (name,), model)
    stages = keys["stages"].content if "stages" in keys else None
    for place, row in enumerate(stages if isinstance(stages, list) else []):
        content = row.content if isinstance(row.content, dict) else {}
        kind = content["kind"].content if "kind" in content else None
        if kind not in registry.stages():
            continue
        spec = registry.stage_spec(kind)
        for key in content.keys() - spec.model_fields.keys():
            yield explain_unknown_key(("stages", place), key, [*spec.model_fields], root)
        for name, field in spec.model_fields.items():
            for model in (field.annotation, *get_args(field.annotation)):
                if isinstance(model, type) and issubclass(model, Frozen):
                    yield from _errors_of(root, ("stages", place, name), model)


def _errors_of(root: Value, path: Path, model: type[Frozen]) -> Iterator[UserError]:
    value, exists = locate(root, path)
    if exists and isinstance(value.content, dict):
        try:
            model.model_validate(value.plain())
        except ValidationError as error:
            if not any(problem["type"] == "missing" for problem in error.errors()):  # another flag may give that key
                yield explain(error, root, path)

"""Recipe file + what it extends + what the command line says → one tree of values that know where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.errors import UserError, describe, did_you_mean, printable
from compress.recipe.document import Place, Value, parse, read, tree
from compress.recipe.explain import explain, format_key_path
from compress.recipe.library import find_recipe, format_path
from compress.recipe.renames import current_key, current_value, item_block, join_block, rename

if TYPE_CHECKING:
    from compress.contracts import Override
    from compress.recipe.schema import Recipe

MAX_EXTENDS = 10


class LoadedRecipe:
    """A recipe whose files were read once: with these overrides, and again with others."""

    def __init__(self, source: Value, overrides: Sequence[Override] = ()) -> None:
        self._source, self.overrides = source, tuple(overrides)

    @classmethod
    def read(
        cls, recipe: str | Path | Mapping[str, Any], overrides: Sequence[Override] = (), *, where: str | None = None
    ) -> LoadedRecipe:
        """The recipe by name, by path or as a mapping, with what it extends.

        where: the flag that named it, for messages. Raises UserError for files that cannot be read.
        """
        return cls(compose(recipe, where=where), overrides)

    def with_overrides(self, overrides: Sequence[Override]) -> LoadedRecipe:
        """The same recipe with other overrides in place of these."""
        return self if tuple(overrides) == self.overrides else LoadedRecipe(self._source, overrides)

    def and_then(self, *more: Override) -> LoadedRecipe:
        """The same recipe with more overrides after these."""
        return self.with_overrides((*self.overrides, *more))

    @cached_property
    def recipe(self) -> Recipe:
        """With the overrides applied, validated. Raises UserError, in one line, for anything that is wrong."""
        return validate(self._root)

    @property
    def content(self) -> dict[str, Any]:
        """With the overrides applied, before anything is validated."""
        return self._root.plain()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The stages, with the overrides applied, before anything is validated."""
        rows = self.content.get("stages")
        return [row if isinstance(row, dict) else {} for row in rows] if isinstance(rows, list) else []

    @property
    def kinds(self) -> list[str]:
        """Of the stages, with the overrides applied, before anything is validated."""
        return [str(row.get("kind", "")) for row in self.rows]

    @cached_property
    def _root(self) -> Value:
        root = deepcopy(self._source)
        for override in self.overrides:
            apply(root, override)
        return root


def load_recipe(
    recipe: str | Path | Mapping[str, Any], overrides: Sequence[Override] = (), *, where: str | None = None
) -> Recipe:
    """The recipe by name, by path or as a mapping, with what it extends and `overrides` applied, validated.

    where: the flag that named it, for messages. Raises UserError, in one line, for anything that is wrong.
    """
    return LoadedRecipe.read(recipe, overrides, where=where).recipe


def validate(root: Value) -> Recipe:
    """The recipe that a tree holds. Raises UserError, in one line, for anything that is wrong."""
    from pydantic import ValidationError

    from compress.recipe.schema import Recipe  # pydantic and the stages, which a mistyped name does not need

    try:
        return Recipe.model_validate(root.plain())
    except ValidationError as error:
        raise explain(error, root) from None


def compose(recipe: str | Path | Mapping[str, Any], *, where: str | None = None) -> Value:
    """The tree of a recipe with what it extends, before overrides and validation."""
    if isinstance(recipe, Mapping):
        root = tree(recipe, Place("recipe"))
        path = None
    else:
        path = find_recipe(str(recipe), where=where)
        root = read(path, format_path(path))
        root.content.setdefault("name", Value(path.stem, root.place))
    return _extend(root, path, [] if path is None else [path.resolve()])


def parse_override(text: str) -> Override:
    """`a.b.0.c=value` of a --set flag; the value is YAML."""
    from compress.contracts import Override

    path, equals, value = text.partition("=")
    origin = f"--set {printable(text, 100)}"
    if not equals or not path.strip():
        raise UserError("not of the form key=value", where=origin, do="e.g. --set stages.0.training.learning_rate=1e-4")
    parsed = parse(value, origin, lines=False)
    return Override(path.strip(), None if parsed is None else parsed.plain(), origin)


def parse_sweep(texts: Sequence[str]) -> Override:
    """The grid of all --sweep flags: `a.b=1,2` each, the values as in a YAML list. Raises UserError."""
    from compress.contracts import Override

    grid: dict[str, Any] = {}
    for text in texts:
        origin = f"--sweep {printable(text, 100)}"
        path, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not path or not values:
            do = "e.g. --sweep stages.0.training.learning_rate=1e-4,3e-4"
            raise UserError("not of the form key=value,value", where=origin, do=do)
        if path in grid:
            raise UserError(f"{path} is given twice", where=origin, do="list all of its values in one --sweep")
        parsed = parse(f"[{values}]", origin, lines=False)
        found = [] if parsed is None else parsed.plain()
        repeated = next((value for place, value in enumerate(found) if value in found[:place]), None)
        if repeated is not None:
            raise UserError(f"the value {repeated} is listed twice", where=origin, do="list each value once")
        grid[path] = found
    return Override("sweep", grid, " ".join(f"--sweep {printable(text, 100)}" for text in texts))


def apply(root: Value, override: Override) -> None:
    """Put one override into the tree. Raises UserError, naming the flag, when its path leads nowhere."""
    place = Place(override.origin)
    steps = override.path.split(".")
    if not all(steps):
        raise UserError("an empty key in the path", where=str(place), why=f"found '{printable(override.path, 100)}'")
    targets = list(_targets(root, steps[:-1], (), place))
    if not targets and override.required:
        raise UserError(f"{format_key_path(steps)}: this path does not exist in the recipe", where=str(place))
    for parent, at, block in targets:
        _put(parent, steps[-1], tree(override.value, place), at, block, place)


# --- extends ----------------------------------------------------------------------------------------------------


def _extend(root: Value, path: Path | None, seen: list[Path]) -> Value:
    wanted = root.content.pop("extends", None)
    if wanted is None:
        rename(root)
        return root
    where = f"{wanted.place}: extends"
    if not isinstance(wanted.content, str):
        raise UserError("must name one recipe", where=where, why=f"found {describe(wanted.content)}")
    base_path = find_recipe(wanted.content, beside=None if path is None else path.parent, where=where)
    if base_path.resolve() in seen:
        chain = " → ".join(p.stem for p in [*seen, base_path])
        raise UserError("recipes extend each other in a cycle", where=where, why=chain)
    if len(seen) >= MAX_EXTENDS:
        raise UserError("too many recipes extend each other", where=where, why=f"more than {MAX_EXTENDS}")
    base = _extend(read(base_path, format_path(base_path)), base_path, [*seen, base_path.resolve()])
    base.content.pop("name", None)
    rename(root, like=base)
    return _merge(base, root)


def _merge(base: Value, over: Value, at: tuple[str, ...] = ()) -> Value:
    """`over` wins; mappings are merged key by key, anything else (lists too) is replaced as a whole.

    A mapping over a list changes the items at the positions that are its keys: `stages: {1: {masking: …}}`.
    """
    if isinstance(base.content, list) and isinstance(over.content, dict):
        items = list(base.content)
        for key, value in over.content.items():
            index = _index(base, key, at, value.key_place or value.place)
            items[index] = _merge(items[index], value, (*at, key))
        return Value(items, over.place, over.key_place)
    if not (isinstance(base.content, dict) and isinstance(over.content, dict)):
        return over
    merged = dict(base.content)
    for key, value in over.content.items():
        merged[key] = _merge(merged[key], value, (*at, key)) if key in merged else value
    return Value(merged, over.place, over.key_place)


# --- overrides --------------------------------------------------------------------------------------------------


def _targets(
    here: Value, steps: Sequence[str], at: tuple[str, ...], place: Place, block: str = ""
) -> Iterator[tuple[Value, tuple[str, ...], str]]:
    """The values that a path leads to, with their paths and blocks (see `renames`); `*` branches into every item of a
    list that has the rest of the path."""
    if not steps:
        yield here, at, block
        return
    step, rest = steps[0], steps[1:]
    if step == "*" and isinstance(here.content, list):
        for index, item in enumerate(here.content):
            inner = item_block(block, item)
            if _has(item, rest, inner, place):
                yield from _targets(item, rest, (*at, str(index)), place, inner)
        return
    if isinstance(here.content, list):
        item = here.content[_index(here, step, at, place)]
        yield from _targets(item, rest, (*at, step), place, item_block(block, item))
        return
    if here.content is None:  # `data: null` or nothing there yet: the override makes the mapping
        here.content = {}
    if not isinstance(here.content, dict):
        raise UserError(
            f"{format_key_path(at)}: not a mapping", where=str(place), why=f"it is {describe(here.content)}"
        )
    step = current_key(block, step, place)
    if step not in here.content:
        here.content[step] = Value({}, place, place)
    yield from _targets(here.content[step], rest, (*at, step), place, join_block(block, step))


def _has(here: Value, steps: Sequence[str], block: str, place: Place) -> bool:
    for step in steps:
        step = current_key(block, step, place)
        if step == "*" or not isinstance(here.content, dict) or step not in here.content:
            return step == "*"
        here, block = here.content[step], join_block(block, step)
    return isinstance(here.content, dict)


def _put(parent: Value, key: str, value: Value, at: tuple[str, ...], block: str, place: Place) -> None:
    if isinstance(parent.content, list):
        positions = range(len(parent.content)) if key == "*" else [_index(parent, key, at, place)]
        for position in positions:
            rename(value, item_block(block, value))
            parent.content[position] = value
        return
    if parent.content is None:
        parent.content = {}
    if not isinstance(parent.content, dict):
        raise UserError(
            f"{format_key_path(at)}: not a mapping", where=str(place), why=f"it is {describe(parent.content)}"
        )
    current_value(block, key, value)
    key = current_key(block, key, place)
    rename(value, join_block(block, key))
    parent.content[key] = value


def _index(here: Value, step: str, at: tuple[str, ...], place: Place) -> int:
    count = len(here.content)
    if at == ("stages",):
        return _stage([item.plain() for item in here.content], step, place)
    if step.isdecimal() and step.isascii() and len(step) < 7 and int(step) < count:
        return int(step)
    path = format_key_path((*at, step))
    if step.isdecimal():
        items = f"0..{count - 1}" if count else "none, the list is empty"
        raise UserError(f"{path}: no such item", where=str(place), why=f"allowed: {items}")
    known = [str(i) for i in range(count)]
    raise UserError(
        f"{path}: '{printable(step, 40)}' is not a list position", where=str(place), do=did_you_mean(step, known)
    )


def match_stages(kinds: Mapping[int, str], word: str) -> list[int]:
    """The places of the stages that a word names: one by its label in plans and progress (`1-distill`) or its number
    from 0, all that have a kind. kinds: place → kind; `prune-layers` is written as `prune_layers` too."""
    if word.isdecimal() and word.isascii() and len(word) < 7 and int(word) in kinds:
        return [int(word)]
    word = word.replace("prune-", "prune_")
    return [place for place, kind in kinds.items() if word in (kind, f"{place}-{kind}")]


def _stage(rows: Sequence[Any], step: str, place: Place) -> int:
    """The place of the stage that a step of a path names."""
    kinds = [str(row.get("kind", "")) if isinstance(row, dict) else "" for row in rows]
    labels = [f"{number}-{kind}" for number, kind in enumerate(kinds)]
    found = match_stages(dict(enumerate(kinds)), step)
    if len(found) == 1:
        return found[0]
    path, listed = format_key_path(("stages", step)), ", ".join(labels) or "none, the list is empty"
    if found:
        do = f"write one of {', '.join(f'stages.{labels[at]}' for at in found)}"
        raise UserError(f"{path}: {len(found)} stages have this kind", where=str(place), do=do)
    if step.isdecimal():
        raise UserError(f"{path}: no such stage", where=str(place), why=f"stages count from 0: {listed}")
    raise UserError(
        f"{path}: '{printable(step, 40)}' is no stage",
        where=str(place),
        do=did_you_mean(step.replace("prune-", "prune_"), [*labels, *kinds]),
    )

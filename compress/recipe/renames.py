"""Recipe keys and values with a new name: the old one still works for one release and warns; hashes keep the old one.

A block is the part of a recipe that a mapping belongs to, as a dotted name without list positions: the kind of a stage
("distill"), or a key inside one ("distill.student", "prune_width.importance").
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compress.errors import UserError
from compress.recipe.document import Place, Value

_log = logging.getLogger("compress.recipe")


@dataclass(frozen=True)
class Rename:
    """One key of one block. new: equal to `old` where only values have a new name. values: old value → new value."""

    block: str
    old: str
    new: str
    values: Mapping[Any, Any] = field(default_factory=dict)


LEVELS = {"corpus": "general", "task": "task_specific"}

RENAMES = (
    *(Rename(kind, "level", "level", LEVELS) for kind in ("distill", "prune_vocab", "share", "factorize", "sparsify")),
    Rename("distill", "result", "select"),
    Rename("distill", "pull", "proximity"),
    Rename("distill.student", "start", "init"),
    Rename("distill.student", "feed_forward", "intermediate_size"),
    Rename("distill", "checks", "checks", {"tell": "warn"}),
    Rename("prune_layers", "at_most", "max_layers_per_stage"),
    Rename("pretrain.encoder", "feed_forward", "intermediate_size"),
    Rename("prune_width", "keep_feed_forward", "intermediate_size"),
    Rename("prune_width", "way", "schedule"),
    Rename("prune_width.importance", "kind", "kind", {"surgeon": "obs"}),
    Rename("share", "own_vectors", "share_norms_and_biases", {True: False, False: True}),
    Rename("share", "start", "init"),
    Rename("share.embedding", "megabytes", "max_mb"),
    Rename("factorize", "megabytes", "max_mb"),
    Rename("share", "again", "reuse_input"),
    Rename("sparsify", "pattern", "sparsity"),
)

_warned: set[tuple[str, str]] = set()


def rename(here: Value, block: str = "", like: Value | None = None) -> None:
    """Give the keys and values of a tree their new names, in place, and warn of each old one.

    like: the recipe that this one extends, which says of what kind a stage is where `here` does not.
    Raises UserError where a mapping holds the old key and the new one.
    """
    content = here.content
    if isinstance(content, list):
        for place, item in enumerate(content):
            rename(item, _item_block(block, item, _at(like, place)), _at(like, place))
        return
    if not isinstance(content, dict):
        return
    for one in RENAMES:
        if one.block == block and one.old in content:
            _replace(content, one)
    for key, child in content.items():
        other = _at(like, key)
        inner = _item_block(block, child, other) if block == "stages" else join_block(block, key)
        rename(child, inner, other)


def current_key(block: str, key: str, place: Place) -> str:
    """The name of a key of this block now; warns where another was used. place: of the key, for the warning."""
    for one in RENAMES:
        if one.block == block and one.old == key != one.new:
            _warn(place, f"the recipe key '{one.old}'", f"'{one.new}'")
            return one.new
    return key


def current_value(block: str, old_key: str, value: Value) -> None:
    """Give the value of a key, as it was written, its new name; warns where it has one."""
    for one in RENAMES:
        if one.block == block and old_key == one.old:
            _translate(one, value, warn=one.old == one.new)


def current_kind(package: str, kind: str, flag: str) -> str:
    """The name of a part of a stage now, such as compress.stages.prune_width.importance; warns where another was used.

    flag: the one that named it, for the warning.
    """
    value = Value(kind, Place(flag))
    current_value(package.removeprefix("compress.stages."), "kind", value)
    return value.content


def join_block(block: str, key: str) -> str:
    """The block of a key inside a block."""
    return f"{block}.{key}" if block else key


def item_block(block: str, item: Value) -> str:
    """The block of one item of a list: a stage's kind, else the list's own."""
    return _item_block(block, item, None)


def as_before(data: Any, block: str = "") -> Any:
    """Plain data with the old names, in which hashes are taken: those of earlier runs stay valid.

    data: of a whole recipe (block ""), or of one stage (its kind).
    """
    if isinstance(data, list):
        return [as_before(item, _kind(item, block) if block == "stages" else block) for item in data]
    if not isinstance(data, dict):
        return data
    said = {key: as_before(value, join_block(block, key)) for key, value in data.items()}
    for one in RENAMES:
        if one.block == block and one.new in said:
            value = said.pop(one.new)
            said[one.old] = next((old for old, new in one.values.items() if _same(new, value)), value)
    return said


def _replace(content: dict[str, Value], one: Rename) -> None:
    value = content[one.old]
    if one.new != one.old and one.new in content:
        place = value.key_place or value.place
        raise UserError(f"{one.old} and {one.new} are the same key", where=str(place), do=f"keep {one.new}")
    if one.new != one.old:
        _warn(value.key_place or value.place, f"the recipe key '{one.old}'", f"'{one.new}'")
    _translate(one, value, warn=one.new == one.old)
    if one.new != one.old:  # in its old position: the resolved recipe is read by people
        items = [(one.new if key == one.old else key, item) for key, item in content.items()]
        content.clear()
        content.update(items)


def _translate(one: Rename, value: Value, *, warn: bool) -> None:
    for old, new in one.values.items():
        if _same(old, value.content):
            if warn:
                _warn(value.place, f"'{one.old}: {old}'", f"'{one.new}: {new}'")
            value.content = new
            return


def _warn(place: Place, old: str, new: str) -> None:
    """Once in a process for each old name: a command may read its recipe several times."""
    if (old, new) not in _warned:
        _warned.add((old, new))
        _log.warning("%s: %s is now %s; the old name works until the next release", place, old, new)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _at(here: Value | None, key: str | int) -> Value | None:
    if here is None:
        return None
    if isinstance(here.content, dict):
        return here.content.get(str(key))
    if isinstance(here.content, list) and str(key).isdecimal() and int(key) < len(here.content):
        return here.content[int(key)]
    return None


def _item_block(block: str, item: Value, like: Value | None) -> str:
    if block != "stages":
        return block
    for one in (item, like):
        if one is not None and isinstance(one.content, dict) and "kind" in one.content:
            return str(one.content["kind"].content)
    return "?"


def _kind(item: Any, block: str) -> str:
    return str(item["kind"]) if isinstance(item, dict) and "kind" in item else block

"""The labels of the data in the order of a model's: matched by name, or refused with what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from compress.data.batches.ragged import LabelArray
from compress.errors import UserError, list_some, printable

MATCHED_BY_ID = "labels are matched by id because one side has no names"


@dataclass
class Labels:
    """Labels per split as their task holds them, their names in order, and notes."""

    numbers: dict[str, LabelArray]
    names: list[str]
    notes: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # splits whose labels are withheld (all -1 or None)


def reconcile(out: Labels, found: list[str], expected: Sequence[str] | None, where: str) -> list[str]:
    """Bring the data's labels into the order of the model's. By name only: an order is never guessed. Names may be
    written in another way: `True` is `true`, `1.0` is `1`."""
    if expected is None or list(expected) == found:
        return found
    wanted = list(expected)
    respelled = _respell(found, wanted)
    if respelled != found:
        pairs = [f"{a} as {b}" for a, b in zip(found, respelled, strict=True) if a != b]
        out.notes.append(f"labels are spelled differently in the data and in the model, matched: {show_names(pairs)}")
        found = respelled
        if found == wanted:
            return wanted
    by_name = set(found) <= set(wanted)
    unnamed_data, unnamed_model = is_unnamed(found), is_unnamed(wanted)
    highest = max((int(n.max()) for n in _flat(out).values() if len(n)), default=0)
    fits = len(found) == len(wanted) or (unnamed_data and not unnamed_model and highest < len(wanted))
    if not by_name and fits and (unnamed_data or unnamed_model):
        named = wanted if unnamed_data else found
        out.notes.append(f"{MATCHED_BY_ID}: {show_names(named)}")
        return named
    if not by_name:
        raise UserError(
            "the labels of the data and of the model differ",
            where=where,
            why=_difference(found, wanted),
            do="use data with the model's labels, name their column with --label-column, rename the labels, or train "
            "a new head (`compress finetune --new-head`)",
        )
    place = {name: i for i, name in enumerate(wanted)}
    order = np.array([place[name] for name in found])
    for split, numbers in _flat(out).items():
        out.numbers[split] = np.where(numbers >= 0, order[numbers], numbers)
    held = set(found)
    if [name for name in wanted if name in held] != found:
        out.notes.append(f"labels are matched by name; the model's order is kept: {show_names(wanted)}")
    if len(found) < len(wanted):
        absent = [name for name in wanted if name not in held]
        out.notes.append(f"no row of this data has the model's label {show_names(absent)}")
    return wanted


def note_alike(names: Sequence[str], notes: list[str]) -> None:
    """Classes that a person probably meant to be one: a blank after a label makes another of it."""
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault(_spell_plainly(name), []).append(f"'{printable(name, 40)}'")
    for alike in (group for group in spelled.values() if len(group) > 1):
        notes.append(f"these labels differ only in their spelling, and are different classes: {list_some(alike, 8)}")


def _respell(found: list[str], wanted: Sequence[str]) -> list[str]:
    """The data's names as the model spells them, where each is the only one that is spelled like that."""
    if set(found) <= set(wanted):
        return found
    ours, theirs = [_spell_plainly(name) for name in found], {_spell_plainly(name): name for name in wanted}
    if len(set(ours)) < len(found) or len(theirs) < len(wanted) or not set(ours) <= set(theirs):
        return found
    return [theirs[name] for name in ours]


def _spell_plainly(name: str) -> str:
    """Without what programs change: case, blanks around, and the zero that a whole number gets as a float."""
    plain = name.strip().casefold()
    return plain.removesuffix(".0") if plain.removesuffix(".0").isdecimal() else plain


def _flat(out: Labels) -> dict[str, np.ndarray]:
    """The label numbers as plain arrays: lists are made of them later."""
    return {split: numbers for split, numbers in out.numbers.items() if isinstance(numbers, np.ndarray)}


def _difference(found: Sequence[str], wanted: Sequence[str]) -> str:
    data, model = set(found), set(wanted)
    ours = [name for name in found if name not in model]
    theirs = [name for name in wanted if name not in data]
    parts = [f"the data has {len(found)}, the model {len(wanted)}"]
    if ours:
        parts.append(f"only in the data: {show_names(ours)}")
    if theirs:
        parts.append(f"only in the model: {show_names(theirs)}")
    return "; ".join(parts)


def show_names(names: Sequence[str], limit: int = 8) -> str:
    return list_some([printable(str(name), 40) for name in names], limit)


def is_unnamed(names: Sequence[str]) -> bool:
    """Whether they are what labels are called that nobody named: LABEL_0, LABEL_1 … or 0, 1 …"""
    return any(list(names) == [f"{prefix}{i}" for i in range(len(names))] for prefix in ("LABEL_", ""))


def have_same_labels(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether they are the same labels in the same order; by number where one of them has no names (LABEL_0 …)."""
    if set(ours) == set(theirs):
        return list(ours) == list(theirs)
    return len(ours) == len(theirs) and (is_unnamed(ours) or is_unnamed(theirs))


def outputs_in_order(found: Sequence[str], wanted: Sequence[str], *, where: str) -> list[int]:
    """For each of the labels `wanted` its place among the outputs `found` of another model.

    By name; by number where one side has no names (LABEL_0 …). Raises UserError unless both hold the same labels.
    """
    if have_same_labels(found, wanted):
        return list(range(len(wanted)))
    if sorted(found) != sorted(wanted):
        raise UserError(
            "the models have different labels",
            where=where,
            why=f"{show_names(found)} against {show_names(wanted)}",
            do="use models for the same task, with the same label names",
        )
    place = {name: i for i, name in enumerate(found)}
    return [place[name] for name in wanted]

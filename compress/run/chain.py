"""A recipe's stages as a chain: the names of stages, the teacher of each, and the orders that are rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compress.contracts import StageSpec
from compress.contracts.traits import Form, Rejection
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.low_rank import is_low_rank
from compress.encoder.config.sparsity import is_sparse
from compress.errors import UserError, did_you_mean, nearest, printable
from compress.recipe import Recipe
from compress.recipe.compose import match_stages

TeacherSource = Literal["teacher", "first"] | int
"""Whom a stage learns from: whom the recipe names, the model that the chain starts from, or the result of a stage."""


def label(recipe: Recipe, index: int) -> str:
    """`1-prune_vocab`: what a stage is called in folders, tables and flags."""
    return f"{index}-{recipe.stages[index].kind}"


def find(recipe: Recipe, places: Sequence[int], asked: str, flag: str) -> int:
    """The place of the stage that a person means: by its name (`1-prune_vocab`), its kind or its number from 0.

    Raises UserError, with the nearest name, where there is none or several.
    """
    word = asked.strip().replace("prune-", "prune_")
    same = match_stages({place: recipe.stages[place].kind for place in places}, word)
    if len(same) == 1:
        return same[0]
    labels = [label(recipe, place) for place in places]
    if same:
        named = ", ".join(label(recipe, place) for place in same)
        raise UserError(f"{len(same)} stages have kind {word}", where=f"{flag} {asked}", do=f"name one: {named}")
    kinds = list(dict.fromkeys(recipe.stages[place].kind for place in places))
    known = [*labels, *kinds]
    do = did_you_mean(word, known) if nearest(word, known) is not None else None
    raise UserError(
        f"recipe {recipe.name} has no stage '{printable(asked, 40)}'",
        where=flag,
        why=f"its stages: {', '.join(labels)}",
        do=do,
    )


# --- who teaches ------------------------------------------------------------------------------------------------


def models_before(recipe: Recipe, indices: Sequence[int], index: int) -> list[int]:
    """The stages before this one that make a model."""
    return [i for i in indices if i < index and recipe.stages[i].makes == "model"]


def find_teacher_source(recipe: Recipe, indices: Sequence[int], index: int) -> TeacherSource:
    """Whom a stage that learns is taught by, as its `taught_by` says; of the others whom the recipe names."""
    spec = recipe.stages[index]
    asked = getattr(spec, "taught_by", "teacher")
    if asked == "teacher":
        return "teacher"
    found = _first(recipe, indices, index) if asked == "first" else _parent(recipe, indices, index)
    if asked is None and found == "first" and recipe.taught_by:
        return "teacher"  # whoever names a teacher wants to be taught by it
    return found


def _parent(recipe: Recipe, indices: Sequence[int], index: int) -> TeacherSource:
    """The model as it was before this stage, or before those without training that it recovers."""
    before = models_before(recipe, indices, index)
    if before and recipe.stages[index].starts_from() != "input":
        return before[-1]
    passed = False
    while before and not recipe.stages[before[-1]].trains():
        if passed and recipe.stages[before[-1]].changes_vocabulary:
            break  # no training brings pieces back, and only models of one vocabulary compare layer by layer
        before.pop()
        passed = True
    if not before:
        return _first(recipe, indices, index)
    previous = models_before(recipe, indices, index)[-1]
    if before[-1] != previous or not recipe.stages[previous].compresses:
        return before[-1]
    return find_teacher_source(recipe, indices, previous)  # it goes on with a student that somebody taught already


def _first(recipe: Recipe, indices: Sequence[int], index: int) -> TeacherSource:
    """The model that the chain starts from: one that was given, or the first that it makes for the task."""
    stages, before = recipe.stages, models_before(recipe, indices, index)
    own = [i for i in before if not stages[i].compresses and stages[i].for_task]
    if not stages[indices[0]].compresses and own:
        return own[0]
    return "first" if recipe.model is not None else "teacher"


def asks_teacher(recipe: Recipe, indices: Sequence[int]) -> bool:
    """Whether a teacher is read: one that the recipe names, or one that a stage cannot do without."""
    if recipe.taught_by:
        return True
    if recipe.has_column_teacher:
        return False
    for index in indices:
        spec = recipe.stages[index]
        if "teacher" not in spec.needs():
            continue
        given = recipe.model is not None or bool(models_before(recipe, indices, index))
        if find_teacher_source(recipe, indices, index) == "teacher" if spec.learns else not given:
            return True
    return False


# --- orders -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelForm:
    """A form that a model has. by: the stage that made it so, None: it was so from the start."""

    form: Form
    by: int | None


def forms_of(config: EncoderConfig | None) -> list[ModelForm]:
    """Those of a model that is there."""
    if config is None:
        return []
    forms: dict[Form, bool] = {
        "quantized": config.quantization is not None,
        "low_rank": is_low_rank(config),
        "sparse": is_sparse(config),
        "shared": config.sharing is not None or config.layer_groups is not None,
        "partly_shared": config.sharing is not None,
        "factorized_embeddings": config.width != config.hidden,
        "static": config.is_static,
        "drops_tokens": config.kept_tokens is not None,
    }
    return [ModelForm(form, None) for form, there in forms.items() if there]


def check_order(recipe: Recipe, indices: Sequence[int], start: EncoderConfig | None) -> None:
    """Raise UserError, before anything runs, for a stage that cannot take what those before it make, and for one whose
    work a later one throws away. start: the shape of the model that the chain starts from, None while it is unknown."""
    models = [i for i in indices if recipe.stages[i].makes == "model"]
    now = given = forms_of(start)
    after: dict[int, list[ModelForm]] = {}
    for index in models:
        spec = recipe.stages[index]
        _refuse_lost(recipe, indices, index)
        if spec.starts_from() in ("random", "checkpoint"):
            now = []
        elif spec.starts_from() == "teacher":
            who = find_teacher_source(recipe, indices, index)
            now = after[who] if isinstance(who, int) else given
        reason = _objection(spec, now)
        # What the first stage cannot take of the model that it is given, it says itself, and with its figures.
        own = index == models[0] and reason is not None and reason[0].by is None and reason[0].form != "static"
        if reason is not None and not own:
            raise _refused(recipe, index, *reason)
        now = after[index] = [*now, *(ModelForm(form, index) for form in spec.makes_forms())]


def _refused(recipe: Recipe, index: int, found: ModelForm, rejection: Rejection) -> UserError:
    here = label(recipe, index)
    earlier = "this model" if found.by is None else label(recipe, found.by)
    what = f"{here} cannot come after {earlier}"
    if found.form == "static":
        what = f"{recipe.stages[index].kind.replace('_', '-')} does not work on a static model"
    return UserError(what, where=f"recipe {recipe.name}", why=rejection.why, do=rejection.do)


def _refuse_lost(recipe: Recipe, indices: Sequence[int], index: int) -> None:
    """A stage that starts anew makes all before it for nothing."""
    spec, before = recipe.stages[index], models_before(recipe, indices, index)
    if not before:
        return
    lost, made = label(recipe, before[-1]), None
    closed = recipe.stages[before[-1]].closes
    if closed is not None:
        raise UserError(
            f"{label(recipe, index)} cannot come after {lost}", where=f"recipe {recipe.name}", why=closed,
            do=f"put {recipe.stages[before[-1]].kind} last",
        )  # fmt: skip
    start = spec.starts_from()
    if start == "random":
        made = "random weights"
    elif start == "checkpoint":
        made = f"its own checkpoint, {spec.checkpoint()}"
    elif start == "teacher" and find_teacher_source(recipe, indices, index) != before[-1]:
        made = "its teacher, which is a different model"
    if made is not None:
        do = "put it first, or let it start from the previous stage's model"
        if spec.learns:
            do += " (student: null, or taught_by: parent)"
        raise UserError(
            f"{label(recipe, index)} discards the result of {lost}",
            where=f"recipe {recipe.name}",
            why=f"it starts from {made}",
            do=do,
        )


def _objection(spec: StageSpec, forms: Sequence[ModelForm]) -> tuple[ModelForm, Rejection] | None:
    """What keeps the stage from working on a model of these forms; None where nothing does."""
    known = {found.form: found for found in forms}
    return next(((known[r.form], r) for r in spec.rejects() if r.form in known), None)


def same_folder(one: Path | None, other: Path | None) -> bool:
    """Whether two names mean one folder."""
    return one is not None and other is not None and one.resolve() == other.resolve()

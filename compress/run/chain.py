"""A recipe's stages as a chain: how a person names one, who teaches each, and which orders make no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.low_rank import is_low_rank
from compress.encoder.config.sparsity import is_sparse
from compress.errors import UserError, did_you_mean, nearest, printable
from compress.recipe import Recipe

Tutor = Literal["teacher", "first"] | int
"""Whom a stage learns from: whom the recipe names, the model that the chain starts from, or the result of a stage."""

MAKERS = ("tokenizer", "pretrain", "finetune")
"""Stages that compress nothing: a model that the chain itself is about may come of them."""


def label(recipe: Recipe, index: int) -> str:
    """`1-prune_vocab`: what a stage is called in folders, tables and flags."""
    return f"{index}-{recipe.stages[index].kind}"


def find(recipe: Recipe, places: Sequence[int], asked: str, flag: str) -> int:
    """The place of the stage that a person means: by its name (`1-prune_vocab`), its kind or its number from 0.

    Raises UserError, with the nearest name, where there is none or several.
    """
    word = asked.strip().replace("prune-", "prune_")
    labels = {label(recipe, place): place for place in places}
    if word in labels:
        return labels[word]
    if word.isdecimal() and word.isascii() and len(word) < 4 and int(word) in places:
        return int(word)
    same = [name for name, place in labels.items() if recipe.stages[place].kind == word]
    if len(same) == 1:
        return labels[same[0]]
    if same:
        raise UserError(
            f"{len(same)} stages are of kind {word}", where=f"{flag} {asked}", do=f"name one: {', '.join(same)}"
        )
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
    return [i for i in indices if i < index and recipe.stages[i].kind != "tokenizer"]


def tutor(recipe: Recipe, indices: Sequence[int], index: int) -> Tutor:
    """Whom a distill stage learns from, as its `taught_by` says; of the other kinds whom the recipe names."""
    spec = recipe.stages[index]
    asked = getattr(spec, "taught_by", "teacher")
    if asked == "teacher":
        return "teacher"
    found = _first(recipe, indices, index) if asked == "first" else _parent(recipe, indices, index)
    if asked is None and found == "first" and recipe.taught_by:
        return "teacher"  # whoever names a teacher wants to be taught by it
    return found


def _parent(recipe: Recipe, indices: Sequence[int], index: int) -> Tutor:
    """The model as it was before this stage, or before those without training that it recovers."""
    before = models_before(recipe, indices, index)
    if before and recipe.stages[index].student is not None:
        return before[-1]
    passed = False
    while before and not hasattr(recipe.stages[before[-1]], "training"):
        if passed and recipe.stages[before[-1]].kind == "prune_vocab":
            break  # no training brings pieces back, and only models of one vocabulary compare layer by layer
        before.pop()
        passed = True
    if not before:
        return _first(recipe, indices, index)
    previous = models_before(recipe, indices, index)[-1]
    if before[-1] != previous or recipe.stages[previous].kind in MAKERS:
        return before[-1]
    return tutor(recipe, indices, previous)  # it goes on with a student that somebody taught already


def _first(recipe: Recipe, indices: Sequence[int], index: int) -> Tutor:
    """The model that the chain starts from: one that was given, or the first that it makes for the task."""
    own = [i for i in models_before(recipe, indices, index) if recipe.stages[i].kind == "finetune"]
    if recipe.stages[indices[0]].kind in MAKERS and own:
        return own[0]
    return "first" if recipe.model is not None else "teacher"


def asks_teacher(recipe: Recipe, indices: Sequence[int]) -> bool:
    """Whether a teacher is read: one that the recipe names, or one that a stage cannot do without."""
    if recipe.taught_by:
        return True
    for index in indices:
        spec = recipe.stages[index]
        if "teacher" not in spec.needs():
            continue
        given = recipe.model is not None or bool(models_before(recipe, indices, index))
        if tutor(recipe, indices, index) == "teacher" if spec.kind == "distill" else not given:
            return True
    return False


# --- orders -----------------------------------------------------------------------------------------------------

QUANTIZED, LOW_RANK, SPARSE, SHARED = "quantized", "low rank", "sparse", "shared"
APART, TABLES = "apart", "tables"
CUTS = {
    "prune_layers": "cutting it",
    "prune_width": "cutting it",
    "prune_vocab": "cutting its vocabulary",
    "share": "sharing its layers",
    "factorize": "factorizing it",
    "sparsify": "making it sparse",
    "quantize": "quantizing it again",
}
"""What a stage does that takes a model apart."""


@dataclass(frozen=True)
class Trait:
    """What a model is that not every stage can take. by: the stage that made it so, None: it was so from the start."""

    name: str
    by: int | None


def traits_of(config: EncoderConfig | None) -> list[Trait]:
    """Those of a model that is there."""
    if config is None:
        return []
    found = {
        QUANTIZED: config.quantization is not None,
        LOW_RANK: is_low_rank(config),
        SPARSE: is_sparse(config),
        SHARED: config.sharing is not None or config.layer_groups is not None,
        APART: config.sharing is not None,
        TABLES: config.width != config.hidden,
    }
    return [Trait(name, None) for name, there in found.items() if there]


def check_order(recipe: Recipe, indices: Sequence[int], start: EncoderConfig | None) -> None:
    """Raise UserError, before anything runs, for a stage that cannot take what those before it make, and for one whose
    work a later one throws away. start: the shape of the model that the chain starts from, None while it is unknown."""
    given, first = traits_of(start), next((i for i in indices if recipe.stages[i].kind != "tokenizer"), None)
    after: dict[int, list[Trait]] = {}
    now = given
    for index in indices:
        spec = recipe.stages[index]
        if spec.kind == "tokenizer":
            continue
        _refuse_lost(recipe, indices, index)
        if spec.kind == "pretrain":
            now = []
        elif spec.kind == "distill" and spec.student is not None:
            who = tutor(recipe, indices, index)
            now = [] if spec.student.model is not None else after[who] if isinstance(who, int) else given
        reason = _objection(spec, now)
        # What the first stage cannot take of the model that it is given, it says itself, and with its figures.
        if reason is not None and not (index == first and reason[0].by is None):
            trait, why, do = reason
            raise _refused(recipe, index, trait, why, do)
        now = after[index] = [*now, *(Trait(name, index) for name in _made(spec))]


def _refused(recipe: Recipe, index: int, trait: Trait, why: str, do: str) -> UserError:
    here = label(recipe, index)
    earlier = "this model" if trait.by is None else label(recipe, trait.by)
    return UserError(f"{here} cannot come after {earlier}", where=f"recipe {recipe.name}", why=why, do=do)


def _refuse_lost(recipe: Recipe, indices: Sequence[int], index: int) -> None:
    """A stage that starts anew makes all before it for nothing."""
    spec, before = recipe.stages[index], models_before(recipe, indices, index)
    if not before:
        return
    lost, made = label(recipe, before[-1]), None
    if recipe.stages[before[-1]].kind == "export":
        why = "a file holds the weights as they were when it was written"
        raise UserError(
            f"{label(recipe, index)} cannot come after {lost}", where=f"recipe {recipe.name}", why=why, do="export last"
        )
    if spec.kind == "pretrain":
        made = "random weights"
    elif spec.kind == "distill" and spec.student is not None:
        if spec.student.model is not None:
            made = f"a checkpoint of its own, {spec.student.model}"
        elif tutor(recipe, indices, index) != before[-1]:
            made = "its teacher, which is another model"
    if made is not None:
        do = "put it first, or let it go on with what it is given"
        if spec.kind == "distill":
            do += " (student: null, or taught_by: parent)"
        raise UserError(
            f"{label(recipe, index)} throws away what {lost} made",
            where=f"recipe {recipe.name}",
            why=f"it starts from {made}",
            do=do,
        )


def _made(spec: Any) -> list[str]:
    """What a stage makes of a model."""
    if spec.kind == "quantize" or (spec.kind == "distill" and spec.quantize is not None):
        return [QUANTIZED]
    if spec.kind == "factorize":
        return [LOW_RANK]
    if spec.kind == "sparsify":
        return [SPARSE]
    if spec.kind == "share":
        shares = spec.pattern.kind != "none"
        apart = shares and (not spec.share_norms_and_biases or spec.residual_rank > 0)
        return [SHARED] * shares + [APART] * apart + [TABLES] * (spec.embedding is not None)
    return []


def _objection(spec: Any, traits: Sequence[Trait]) -> tuple[Trait, str, str] | None:
    """(what it is that keeps the stage from working, why, what to do); None where nothing does."""
    known = {trait.name: trait for trait in traits}
    doing = CUTS.get(spec.kind, "quantizing it again" if getattr(spec, "quantize", None) is not None else None)
    if doing is not None and QUANTIZED in known:
        return known[QUANTIZED], f"the model is quantized already, and {doing} reads float layers", "quantize last"
    takes_apart = ("factorize", "prune_width", "sparsify")
    whole = spec.kind in takes_apart or (spec.kind == "share" and spec.pattern.kind != "none")
    if whole and SPARSE in known:
        why = f"the model's matrices are 2:4 sparse, and {doing} would break the pattern"
        return known[SPARSE], why, "use one of both" if spec.kind == "factorize" else "sparsify afterwards, and once"
    if whole and LOW_RANK in known:
        why = f"the model's matrices are of low rank already, and {doing} reads whole ones"
        return known[LOW_RANK], why, "use one of both" if spec.kind == "sparsify" else "factorize afterwards, and once"
    if spec.kind in ("factorize", "sparsify") and APART in known:
        what = "products cannot stand for" if spec.kind == "factorize" else "zeros cannot be taken out of"
        why = f"its layers share matrices and keep something of their own, which {what}"
        return (
            known[APART],
            why,
            f"{spec.kind} alone, or share whole layers (share_norms_and_biases: true, residual_rank: 0)",
        )
    if spec.kind == "prune_width" and (spec.hidden or spec.head_width) and APART in known:
        why = "its layers share matrices and keep something of their own, so channels cannot go"
        return known[APART], why, "make it narrower first and share it then"
    if spec.kind == "share":
        if spec.embedding is not None and TABLES in known:
            return known[TABLES], "its embeddings are factorized already", "leave embedding out"
        if SHARED in known and not spec.reuse_input:
            return known[SHARED], "its layers share already", "set reuse_input: true to join its groups further"
    return None


def same_folder(one: Path | None, other: Path | None) -> bool:
    """Whether two names mean one folder."""
    return one is not None and other is not None and one.resolve() == other.resolve()

"""The flags of `compress share`, and what they mean in a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from compress import registry
from compress.errors import UserError, did_you_mean
from compress.stages.shared.flags import (
    GENERAL_TEACHER,
    NO_RECOVER,
    RECOVERY,
    SEEDS,
    Edit,
    Family,
    Flag,
    Given,
    Table,
    part,
    part_names,
    require_recovery,
)

if TYPE_CHECKING:
    from compress.recipe import Recipe

PATTERNS, STARTS = "compress.stages.share.patterns", "compress.stages.share.starts"

ROWS: Mapping[str, Mapping[str, Any]] = {
    "all": {"kind": "all"},
    "none": {"kind": "none"},
    "attention": {"kind": "attention"},
    "feed-forward": {"kind": "feed_forward"},
    "contiguous": {"kind": "contiguous"},
    "sequence": {"kind": "cyclic", "order": "sequence"},
    "cycle": {"kind": "cyclic", "order": "cycle"},
    "cycle-reverse": {"kind": "cyclic", "order": "cycle-reverse"},
    "answers": {"kind": "answers"},
    "cka": {"kind": "cka"},
    "cka-free": {"kind": "cka", "contiguous": False},
}
"""--pattern → the recipe row that it means."""


def _pattern(name: str, flag: str) -> str:
    if name not in ROWS:
        raise UserError(f"unknown pattern '{name}'", where=flag, do=did_you_mean(name, ROWS))
    return name


def pattern_row(name: str | None, groups: str | None) -> dict[str, Any] | None:
    """The recipe row that --pattern and --groups mean together; None without both. Raises UserError."""
    from compress.recipe import parse_override

    if name is None and groups is None:
        return None
    listed = None if groups is None else parse_override(f"--groups={groups}").value
    if isinstance(listed, list) and name is not None:
        raise UserError("a list of groups is a pattern already", where=f"--pattern {name}", do="remove one of the two")
    if isinstance(listed, list):
        return {"kind": "listed", "groups": listed}
    pattern = _pattern(name or "contiguous", "--pattern")
    row = dict(ROWS[pattern])
    counted = "groups" in registry.schema(PATTERNS, row["kind"]).model_fields
    if listed is None:
        if counted and pattern not in ("attention", "feed-forward"):
            raise UserError("needs a number of groups", where=f"--pattern {pattern}", do="add --groups N")
        return row
    if not isinstance(listed, int) or isinstance(listed, bool):
        raise UserError("neither a number nor a list of groups", where=f"--groups {groups}", do="e.g. --groups 3")
    if not counted:
        raise UserError(f"pattern {pattern} has no number of groups", where=f"--groups {listed}", do="remove --groups")
    return {**row, "groups": listed}


def _edits(recipe: Recipe, place: int, given: Given) -> Iterator[Edit]:
    row = pattern_row(given["pattern"], given["groups"])
    if row is not None:
        origin = " ".join(f"--{key} {given[key]}" for key in ("groups", "pattern") if given[key] is not None)
        yield Edit(f"stages.{place}.pattern", row, origin)
        yield from _proximity(recipe, place, row, origin)
    if given["shrink_residuals"]:
        flag, why = "--shrink-residuals", "residuals shrink during recovery training"
        require_recovery(given, flag, why)
        after = [n for n, stage in enumerate(recipe.stages) if n > place and stage.kind == "distill"]
        if not after:
            raise UserError(f"{why}, and recipe {recipe.name} has none", where=flag, do=f"remove {flag}")
        yield Edit(f"stages.{after[0]}.shrink_residuals", {}, flag)


def _proximity(recipe: Recipe, place: int, row: Mapping[str, Any], origin: str) -> Iterator[Edit]:
    """Stages before the conversion that pull layers together pull those that it merges. Raises UserError."""
    pulling = [n for n, stage in enumerate(recipe.stages[:place]) if getattr(stage, "proximity", None) is not None]
    if pulling and row["kind"] not in ("contiguous", "listed"):
        raise UserError(
            f"recipe {recipe.name} needs to know the groups before training, for its proximity regularizer",
            where=origin,
            do="give --groups N, or a list of groups",
        )
    yield from (Edit(f"stages.{n}.proximity.groups", row["groups"], origin) for n in pulling)


def _check(recipe: Recipe, place: int, given: Given) -> None:
    if given["shrink_residuals"] and not recipe.stages[place].residual_rank:
        raise UserError("there are no residuals to shrink", where="--shrink-residuals", do="add --residual-rank R")


TABLE = Table(
    kind="share",
    recipe="share",
    flags=(
        Flag(
            "--groups", "", "Number of groups of neighbouring layers, each group with one set of weights; or the "
            "groups themselves: [[0,1],[2,3],[4,5]].", metavar="N",
        ),
        Flag(
            "--pattern", "", "Which layers share parameters.", metavar="NAME", convert=_pattern,
            known=lambda: tuple(ROWS),
        ),
        Flag(
            "--init", "init", "Initialization of the shared weights.", metavar="NAME", convert=part(STARTS),
            known=part_names(STARTS),
        ),
        Flag(
            "--share-norms-and-biases", "share_norms_and_biases", "Also share layer norms and biases, as ALBERT does.",
            kind="switch",
        ),
        Flag(
            "--residual-rank", "residual_rank", "Rank of the low-rank residual that each layer adds to the shared "
            "weights; 0: none.", kind="int", metavar="R",
        ),
        Flag(
            "--embedding-size", "embedding", "Width of the factorized embedding tables.", kind="int", metavar="E",
            convert=lambda value, _: {"size": value}, family="embedding",
        ),
        Flag(
            "--embedding-error", "embedding", "Smallest width whose relative error stays below SHARE, e.g. 0.05.",
            kind="float", metavar="SHARE", convert=lambda value, _: {"error": value}, family="embedding",
        ),
        Flag(
            "--embedding-max-mb", "embedding", "Largest width whose tables take at most MB megabytes.", kind="float",
            metavar="MB", convert=lambda value, _: {"max_mb": value}, family="embedding",
        ),
        Flag(
            "--shrink-residuals", "", "Shrink the residuals to zero during recovery training; the result has none.",
            "training", "switch",
        ),
        GENERAL_TEACHER,
        *RECOVERY,
        NO_RECOVER,
        SEEDS,
    ),
    families={"embedding": Family(why="each sets the width of the tables")},
    edits=_edits,
    check=_check,
)  # fmt: skip

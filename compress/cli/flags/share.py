"""`compress share`: what its flags mean in a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress import registry
from compress.cli.flags import shared as flags
from compress.contracts import Override, RunOptions
from compress.errors import UserError, did_you_mean
from compress.recipe import Recipe, load_recipe, parse_override
from compress.stages.share.stage import PATTERNS, STARTS

KIND, DEFAULT = "share", "share"
FLAGS = {"size": "--embedding-size", "error": "--embedding-error", "max_mb": "--embedding-mb"}
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


@dataclass(frozen=True)
class Wanted:
    """The command's own flags; None where one was not given. embedding: size, error or max_mb."""

    model: str | None
    groups: str | None
    pattern: str | None
    start: str | None
    shared_vectors: bool
    residual_rank: int | None
    shrink_residuals: bool
    embedding: Mapping[str, float | None]
    heal: bool
    seeds: int | None


def share(wanted: Wanted, options: RunOptions, inputs: Mapping[str, Path]) -> None:
    """Convert, heal, measure and tell. Raises UserError for flags that do not fit.

    inputs: folders given by flags: may hold `general_teacher`.
    """
    console, name = flags.listening(options), options.recipe or DEFAULT
    verb = None if wanted.heal else KIND
    flags.run(name, asked(name, wanted, options), console, verb=verb, seeds=wanted.seeds, inputs=inputs)


def asked(name: str, wanted: Wanted, options: RunOptions) -> RunOptions:
    """The options with what the command's own flags say of the recipe's first share stage. Raises UserError."""
    recipe = load_recipe(name, overrides=options.overrides)
    place = flags.first_stage(recipe, KIND)
    stage, said = f"stages.{place}.", flags.model_said(wanted.model)
    if (row := pattern_row(wanted)) is not None:
        origins = [f"--{key} {value}" for key in ("groups", "pattern") if (value := getattr(wanted, key)) is not None]
        said.append(Override(f"{stage}pattern", row, " ".join(origins)))
        said += _pulls(recipe, place, row, " ".join(origins))
    if wanted.start is not None:
        row = {"kind": flags.part_kind(STARTS, wanted.start, "--start")}
        said.append(Override(f"{stage}init", row, f"--start {wanted.start}"))
    if wanted.shared_vectors:
        said.append(Override(f"{stage}share_norms_and_biases", True, "--shared-vectors"))
    if wanted.residual_rank is not None:
        said.append(Override(f"{stage}residual_rank", wanted.residual_rank, f"--residual-rank {wanted.residual_rank}"))
    if wanted.shrink_residuals:
        said.append(_shrinking(recipe, place, wanted))
    said += _embedding(wanted, stage)
    return flags.with_flags(options, said)


def pattern_row(wanted: Wanted) -> dict[str, Any] | None:
    """The recipe row that --groups and --pattern mean together; None without both. Raises UserError."""
    if wanted.pattern is None and wanted.groups is None:
        return None
    name = wanted.pattern or "contiguous"
    if name not in ROWS:
        raise UserError(f"unknown pattern '{name}'", where="--pattern", do=did_you_mean(name, ROWS))
    row = dict(ROWS[name])
    groups = None if wanted.groups is None else parse_override(f"--groups={wanted.groups}").value
    counted = "groups" in registry.schema(PATTERNS, row["kind"]).model_fields
    if isinstance(groups, list):
        if wanted.pattern is not None:
            raise UserError("a list of groups is a pattern already", where=f"--pattern {name}", do="leave it out")
        return {"kind": "listed", "groups": groups}
    if groups is None:
        if counted and name not in ("attention", "feed-forward"):
            raise UserError("how many groups?", where=f"--pattern {name}", do="give --groups N")
        return row
    if not isinstance(groups, int) or isinstance(groups, bool):
        raise UserError(
            "neither a number nor a list of groups", where=f"--groups {wanted.groups}", do="e.g. --groups 3"
        )
    if not counted:
        raise UserError(f"pattern {name} has no number of groups", where=f"--groups {groups}", do="leave it out")
    return {**row, "groups": groups}


def _pulls(recipe: Recipe, place: int, row: Mapping[str, Any], origin: str) -> list[Override]:
    """Layers that stages before the conversion draw together are those that it merges. Raises UserError."""
    pulling = [n for n, stage in enumerate(recipe.stages[:place]) if getattr(stage, "proximity", None) is not None]
    if pulling and row["kind"] not in ("contiguous", "listed"):
        raise UserError(
            f"recipe {recipe.name} draws layers together before it merges them, and must know which",
            where=origin,
            do="give --groups N, or a list of groups",
        )
    return [Override(f"stages.{n}.proximity.groups", row["groups"], origin) for n in pulling]


def _shrinking(recipe: Recipe, place: int, wanted: Wanted) -> Override:
    """Raises UserError where nothing heals, or there are no residuals."""
    flag = "--shrink-residuals"
    rank = recipe.stages[place].residual_rank if wanted.residual_rank is None else wanted.residual_rank
    if not rank:
        raise UserError("there are no residuals that could shrink", where=flag, do="give --residual-rank R as well")
    healing = [n for n, stage in enumerate(recipe.stages) if n > place and stage.kind == "distill"]
    if not wanted.heal or not healing:
        raise UserError("residuals shrink while the model heals", where=flag, do="leave out --no-heal")
    return Override(f"stages.{healing[0]}.shrink_residuals", {}, flag)


def _embedding(wanted: Wanted, stage: str) -> list[Override]:
    given = flags.one_of(wanted.embedding, FLAGS, "each says how wide the tables are")
    if given is None:
        return []
    key, value = given
    return [Override(f"{stage}embedding", {key: value}, f"{FLAGS[key]} {value:g}")]

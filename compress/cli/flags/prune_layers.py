"""`compress prune-layers`: what its flags mean in a recipe, and why each layer went."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compress import registry
from compress.cli.flags import shared as flags
from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.errors import UserError
from compress.experiments.criteria import contest
from compress.modelfolder import folder as modelfolder
from compress.recipe import Recipe, load_recipe
from compress.run import Run, RunReport, work_folder
from compress.run.teachers import is_recipe, overrides, teacher_folder
from compress.stages.prune_layers.report import FATE, LAYERS
from compress.stages.prune_layers.spec import TARGETS
from compress.stages.prune_layers.stage import PACKAGE
from compress.storage import safe

KIND, DEFAULT, ALL = "prune_layers", "prune-layers", "all"


@dataclass(frozen=True)
class Wanted:
    """The command's own flags; None where one was not given. step: layers removed between recoveries."""

    model: str | None
    keep: str | None
    drop: int | None
    max_drop: float | None
    target_latency: float | None
    criterion: str | None
    protect: str | None
    step: int | None
    recover: bool
    explain: bool
    seeds: int | None
    draws: int | None

    @property
    def verb(self) -> str | None:
        """Of the recipe's stages: those that cut alone, or all."""
        return None if self.recover else KIND


def prune_layers(wanted: Wanted, options: RunOptions) -> None:
    """Cut, recover, measure and tell; with criterion `all`, or several, the contest. Raises UserError for flags that do
    not fit."""
    console, name = flags.listening(options), options.recipe or DEFAULT
    if wanted.criterion is not None and (wanted.criterion == ALL or "," in wanted.criterion):
        _contest(name, wanted, wanted.criterion, options, console)
        return
    if wanted.draws is not None:
        raise UserError("is for the contest", where="--draws", do="use --criterion all, or several: cka,greedy-loss")
    options = asked(name, wanted, options, console)
    report = flags.run(name, options, console, verb=wanted.verb, seeds=wanted.seeds)
    if report is not None and wanted.explain:
        for line in explained(load_recipe(name, overrides=options.overrides), report):
            console.result(line)


def _contest(name: str, wanted: Wanted, criteria: str, options: RunOptions, console: Console) -> None:
    others = {"--drop": wanted.drop, "--max-drop": wanted.max_drop, "--target-latency": wanted.target_latency}
    for flag, value in (others | {"--step": wanted.step, "--explain": wanted.explain or None}).items():
        if value is not None:
            raise UserError("not in the contest", where=flag, do="name the depths with --keep 5,4,3, or leave it out")
    if wanted.draws is not None and not wanted.recover:
        why = "without recovery all sets are measured where they are few, and random draws its own"
        raise UserError("goes with recovery", where="--draws", why=why, do="leave out it or --no-recover")
    names = [part.strip() for part in criteria.split(",")]
    kinds = registry.parts(PACKAGE) if criteria == ALL else dict.fromkeys(map(_criterion, names))
    depths = () if wanted.keep is None else flags.numbers(wanted.keep, "--keep", "0,5")
    one = dataclasses.replace(wanted, keep=None, criterion=None)
    options = asked(name, one, options, console)
    place = flags.first_stage(load_recipe(name, overrides=options.overrides), KIND)
    contest(
        name, place, depths, wanted.seeds or 1, list(kinds), wanted.draws or 0, wanted.verb, wanted.recover, options,
        console,
    )  # fmt: skip


def asked(name: str, wanted: Wanted, options: RunOptions, console: Console) -> RunOptions:
    """The options with what the command's own flags say of the recipe. Raises UserError."""
    place = flags.first_stage(load_recipe(name, overrides=flags.without_set(options)), KIND)
    said = [*flags.model_said(wanted.model), *_targets(wanted, place)]
    if wanted.criterion is not None:
        row = {"kind": _criterion(wanted.criterion)}
        said.append(Override(f"stages.{place}.criterion", row, f"--criterion {wanted.criterion}"))
    if wanted.protect is not None:
        layers = list(flags.numbers(wanted.protect, "--protect", "0,5"))
        said.append(Override(f"stages.{place}.protect", layers, f"--protect {wanted.protect}"))
    made = flags.with_flags(options, said)
    if wanted.step is None:
        return made
    recipe = load_recipe(name, overrides=made.overrides)
    rows = schedule(recipe, wanted.step, depth_of(recipe, options, console))
    more = Override("stages", rows, f"--step {wanted.step}")
    return dataclasses.replace(made, overrides=(*made.overrides, more))


def _criterion(name: str) -> str:
    return flags.part_kind(PACKAGE, name, "--criterion", [ALL])


def _targets(wanted: Wanted, place: int) -> list[Override]:
    """One of the targets that was given takes the place of the recipe's."""
    given: dict[str, Any] = {
        "drop": wanted.drop,
        "max_drop": wanted.max_drop,
        "target_latency": wanted.target_latency,
        "keep": None if wanted.keep is None else _one(flags.numbers(wanted.keep, "--keep", "0,5")),
    }
    known = {key: f"--{key.replace('_', '-')}" for key in given}
    found = flags.one_of(given, known, "each says how many layers go")
    if found is None:
        return []
    key, value = found
    if value <= 0 and key != "max_drop":
        raise UserError(f"{value:g} is not possible", where=known[key], do="give a number above 0")
    origin = f"{known[key]} {value:g}"
    others = [Override(f"stages.{place}.{key}", None, origin) for key in TARGETS]
    return [*others, Override(f"stages.{place}.{key}", value, origin)]


def _one(values: Sequence[int]) -> int:
    if len(values) != 1:
        raise UserError(
            "several depths", where="--keep", why="one model is made", do="use --criterion all, or give one"
        )
    return values[0]


def schedule(recipe: Recipe, step: int, depth: int) -> list[dict[str, Any]]:
    """The stages of the recipe with its cut, and what follows it, repeated until all that should go is gone."""
    place = flags.first_stage(recipe, KIND)
    rows = [stage.model_dump(mode="json") for stage in recipe.stages]
    cut, rest = recipe.stages[place], flags.same_teacher(rows[place + 1 :])
    keep = depth - cut.drop if cut.drop is not None else cut.keep
    if keep is None:
        raise UserError("needs a number of layers", where="--step", do="give --keep or --drop")
    if any(row["kind"] == KIND for row in rest):
        raise UserError(f"recipe {recipe.name} cuts several times already", where="--step", do="leave it out")
    repeats = max(1, -(-(depth - keep) // step))
    one = [{**rows[place], "keep": keep, "drop": None, "max_layers_per_stage": step}, *rest]
    return rows[:place] + one * repeats


def depth_of(recipe: Recipe, options: RunOptions, console: Console) -> int:
    """Layers of the model that is cut, made or not. Raises UserError."""
    name = recipe.teacher
    if name is None:
        raise UserError("which model?", where="MODEL", do="name a fine-tuned model's folder")
    if not is_recipe(name):
        return modelfolder.inspect(teacher_folder(name)).config.depth
    teacher = load_recipe(name, overrides=overrides(recipe, load_recipe(name)))
    planned = Run(teacher, options, console, None, {}).outline(None, None)
    assert planned is not None
    return planned.depth


def explained(recipe: Recipe, report: RunReport) -> list[str]:
    """Why each layer went, in the order in which they did, from what the stages wrote."""
    lines = []
    for index, stage in enumerate(recipe.stages):
        if stage.kind != KIND:
            continue
        table = safe.read_json(work_folder(report.folder, index, KIND) / LAYERS, 1 << 20)
        place, fate, why = (table["columns"].index(name) for name in ("layer", FATE, "why"))
        gone = sorted((row for row in table["data"] if row[why]), key=lambda row: int(row[fate].split()[1]))
        lines += [f"layer {row[place]} went: {row[why]}" for row in gone]
    return lines

"""`compress factorize`: what its flags mean in a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from compress.cli.flags import shared as flags
from compress.contracts import Override, RunOptions
from compress.errors import UserError
from compress.recipe import load_recipe
from compress.stages.factorize.stage import METHODS

KIND, DEFAULT = "factorize", "factorize"
FLAGS = {"ratio": "--ratio", "rank": "--rank", "max_mb": "--mb"}


@dataclass(frozen=True)
class Wanted:
    """The command's own flags; None where one was not given."""

    model: str | None
    ratio: float | None
    rank: int | None
    max_mb: float | None
    method: str | None
    allocation: str | None
    only_faster: bool
    heal: bool
    seeds: int | None


def factorize(wanted: Wanted, options: RunOptions) -> None:
    """Split, heal, measure and tell. Raises UserError for flags that do not fit."""
    console, name = flags.listening(options), options.recipe or DEFAULT
    verb = None if wanted.heal else KIND
    flags.run(name, asked(name, wanted, options), console, verb=verb, seeds=wanted.seeds)


def asked(name: str, wanted: Wanted, options: RunOptions) -> RunOptions:
    """The options with what the command's own flags say of the recipe's first stage that splits. Raises UserError."""
    place = flags.first_stage(load_recipe(name, overrides=flags.without_set(options)), KIND)
    stage, said = f"stages.{place}.", flags.model_said(wanted.model)
    said += _target(wanted, stage)
    if wanted.method is not None:
        row = {"kind": flags.part_kind(METHODS, wanted.method, "--method")}
        said.append(Override(f"{stage}method", row, f"--method {wanted.method}"))
    if wanted.allocation is not None:
        if wanted.rank is not None:
            raise UserError("ranks that are named are not spread", where="--allocation", do="leave --rank or this out")
        said.append(Override(f"{stage}allocation", wanted.allocation, f"--allocation {wanted.allocation}"))
    if wanted.only_faster:
        said.append(Override(f"{stage}only_faster", True, "--only-faster"))
    return flags.with_flags(options, said)


def _target(wanted: Wanted, stage: str) -> list[Override]:
    """The one target that was given takes the place of the recipe's. Raises UserError."""
    given = flags.one_of({key: getattr(wanted, key) for key in FLAGS}, FLAGS, "each says how much stays")
    if given is None:
        return []
    key, value = given
    origin = f"{FLAGS[key]} {value:g}"
    if value <= 0 or (key == "ratio" and value >= 1):
        allowed = "a share between 0 and 1, e.g. 0.5" if key == "ratio" else "a number above 0"
        raise UserError(f"{value:g} is not possible", where=FLAGS[key], do=f"give {allowed}")
    return [Override(f"{stage}{one}", value if one == key else None, origin) for one in FLAGS]

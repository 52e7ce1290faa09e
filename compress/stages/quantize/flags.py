"""The flags of `compress quantize`, and what they mean in a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from compress.encoder.config.scheme_names import SchemeName
from compress.errors import UserError, did_you_mean
from compress.stages.shared.flags import RECOVERY, SEEDS, Edit, Flag, Given, Table

if TYPE_CHECKING:
    from compress.recipe import Recipe

RECIPES = {"ptq": "quantize", "qat": "qat"}
"""--mode → the recipe where none is named."""
FEW_BITS = "few-bits"
"""The same of --mode qat where weights have fewer than 4 bits."""


def _scheme(name: str, flag: str) -> str:
    if name not in (known := get_args(SchemeName)):
        raise UserError(f"unknown scheme '{name}'", where=flag, do=did_you_mean(name, known))
    return name


BITS = {"8": "per-token", "4": "int4", "3": "int3", "2": "int2"}
"""--bits → the scheme."""


def default_recipe(given: Given) -> str:
    """The recipe where none is named."""
    few = str(given.get("bits")) in ("2", "3") or (given.get("scheme") or "").startswith(("int2", "int3"))
    return FEW_BITS if few and given.get("mode") == "qat" else RECIPES[given.get("mode") or "ptq"]


def _edits(recipe: Recipe, place: int, given: Given) -> Iterator[Edit]:
    if (bits := given["bits"]) is not None:
        if given["scheme"] is not None:
            do = f"remove --bits, or --scheme: {bits} bits are the scheme {BITS[bits]}"
            raise UserError("--bits selects the scheme itself", where=f"--scheme {given['scheme']}", do=do)
        yield Edit(f"stages.{place}.scheme", BITS[bits], f"--bits {bits}")
    if given["mode"] == "qat" and place == len(recipe.stages) - 1:
        do = "remove --recipe, or name one with a distill stage after quantize, such as qat"
        raise UserError(f"recipe {recipe.name} has no training after quantization", where="--mode qat", do=do)
    if given["float"]:
        rules = [rule.model_dump(mode="json") for rule in recipe.stages[place].rules]
        rules += [{"pattern": pattern} for pattern in given["float"]]
        yield Edit(f"stages.{place}.rules", rules, f"--float {given['float'][0]}")


def _check(recipe: Recipe, place: int, given: Given) -> None:
    if given["fall_back"] is not None and recipe.stages[place].max_drop is None:
        where = f"--fall-back {given['fall_back']}"
        raise UserError("only applies with --max-drop", where=where, do="add --max-drop POINTS")


TABLE = Table(
    kind="quantize",
    recipe="quantize",
    chosen=default_recipe,
    flags=(
        Flag(
            "--mode", "", "ptq: quantize without training; qat: quantization-aware training, with MODEL as teacher "
            "(default: as the recipe does, else ptq).", choices=("ptq", "qat"),
        ),
        Flag(
            "--scheme", "scheme", "Quantization scheme.", metavar="NAME", convert=_scheme,
            known=lambda: get_args(SchemeName),
        ),
        Flag(
            "--bits", "", "Bits of a weight: 8 selects the scheme per-token, 4, 3 and 2 select int4, int3 and int2 "
            "(below 4 bits use --mode qat).", choices=tuple(BITS),
        ),
        Flag(
            "--max-drop", "max_drop", "Maximum drop of the main metric on validation, in percentage points; the most "
            "damaging modules are not quantized until it is met.", kind="float", metavar="POINTS",
        ),
        Flag(
            "--fall-back", "fall_back", "What those modules become; 16-bit: stored in 16 bits, computed in fp32 "
            "(default: the recipe's, 16-bit).", choices=("16-bit", "float"),
        ),
        Flag(
            "--float", "", "Modules that stay float, such as 'encoder.layers.0.*'; repeatable.", metavar="PATTERN",
            multiple=True,
        ),
        Flag("--rows", "rows", "Number of training texts to observe activation ranges on.", kind="int", metavar="N"),
        Flag(
            "--no-sensitivity", "sensitivity", "Skip the sensitivity analysis, which measures the loss of quality from "
            "each module alone.", kind="switch", constant=False,
        ),
        *RECOVERY,
        SEEDS,
    ),
    edits=_edits,
    check=_check,
)  # fmt: skip

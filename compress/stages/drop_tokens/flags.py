"""The flags of `compress drop-tokens`, and what they mean in a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compress.errors import UserError
from compress.stages.shared.flags import NO_RECOVER, RECOVERY, SEEDS, Family, Flag, Given, Table, number_or_list

if TYPE_CHECKING:
    from compress.recipe import Recipe


def _check(recipe: Recipe, place: int, given: Given) -> None:
    if given["confidence"] is not None and recipe.stages[place].max_drop is None:
        where = f"--confidence {given['confidence']:g}"
        raise UserError("only applies with --max-drop", where=where, do="add --max-drop POINTS, or remove it")


TABLE = Table(
    kind="drop_tokens",
    recipe="drop-tokens",
    flags=(
        Flag(
            "--max-drop", "max_drop", "Maximum drop of accuracy before recovery training, in percentage points: the "
            "fastest plan is chosen that is proven to be within it.", kind="float", metavar="POINTS",
            family="target",
        ),
        Flag(
            "--confidence", "confidence", "Probability with which the loss on other texts like these is within "
            "--max-drop (50 to 99.8).", kind="float", metavar="PERCENT",
        ),
        Flag(
            "--keep-tokens", "keep_tokens", "Percentage of the tokens that is kept after the first layer, such as "
            "50, or after each layer: 100,75,50,50,50,50; nothing is measured.", metavar="PERCENTS",
            convert=number_or_list("100,75,50"), family="target",
        ),
        *RECOVERY,
        NO_RECOVER,
        SEEDS,
    ),
    families={"target": Family(("max_drop", "keep_tokens"), "each sets which tokens are dropped")},
    check=_check,
)  # fmt: skip

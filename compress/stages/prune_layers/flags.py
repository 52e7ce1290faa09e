"""The flags of `compress prune-layers`, and what they mean in a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.errors import UserError
from compress.stages.shared.flags import (
    NO_RECOVER,
    RECOVERY,
    SEEDS,
    Family,
    Flag,
    Given,
    Table,
    above_zero,
    is_given,
    numbers,
    parse_numbers,
    part,
    part_names,
    repeatable,
)  # fmt: skip

if TYPE_CHECKING:
    from compress.recipe import Recipe

PACKAGE = "compress.stages.prune_layers.criteria"
ALL = "all"
ROUND, SUBSETS = "--layers-per-round", "--random-subsets"


def compares(given: Given) -> bool:
    """Whether the flags ask for a comparison of criteria, not for one model."""
    return given["criterion"] is not None and (given["criterion"] == ALL or "," in given["criterion"])


def check_one(given: Given) -> None:
    """Flags for one model. Raises UserError for one that only applies to a comparison of criteria."""
    if given["random_subsets"] is not None:
        do = "use --criterion all, or several: cka,greedy-loss"
        raise UserError("only applies when criteria are compared", where=SUBSETS, do=do)


def check_comparison(given: Given) -> None:
    """Flags for a comparison of criteria. Raises UserError for one that only applies to one model."""
    for flag in ("--drop", "--max-drop", "--target-latency", ROUND, "--explain"):
        if is_given(given[flag[2:].replace("-", "_")]):
            do = "give the numbers of layers with --keep 5,4,3"
            raise UserError("does not apply when criteria are compared", where=flag, do=do)
    if given["random_subsets"] is not None and given["no_recover"]:
        why = "without recovery training the comparison draws its own random subsets"
        raise UserError("only applies with recovery training", where=SUBSETS, why=why, do="remove one of the two")


def _layers(text: str, flag: str) -> int | str:
    if text == "half":
        return text
    values = parse_numbers(text, flag, "3 or half")
    if len(values) != 1:
        why = "one model is made"
        raise UserError("several numbers of layers", where=flag, why=why, do="use --criterion all, or give one")
    above_zero(values[0], flag)
    return values[0]


def repeat_stages(recipe: Recipe, place: int, per_round: int, depth: int) -> list[dict[str, Any]]:
    """The stages of the recipe with its cut, and what follows it, repeated until `per_round` layers at a time have left
    as many as should stay. depth: layers of the model. Raises UserError."""
    rows = [stage.model_dump(mode="json") for stage in recipe.stages]
    cut, rest = recipe.stages[place], repeatable(rows[place + 1 :])
    keep = cut.count_kept(depth)
    if keep is None:
        raise UserError("needs a number of layers", where=ROUND, do="add --keep or --drop")
    if any(row["kind"] == "prune_layers" for row in rest):
        raise UserError(f"recipe {recipe.name} prunes in several rounds already", where=ROUND, do=f"remove {ROUND}")
    rounds = max(1, -(-(depth - keep) // per_round))
    one = [{**rows[place], "keep": keep, "drop": None, "max_layers_per_stage": per_round}, *rest]
    return rows[:place] + one * rounds


TABLE = Table(
    kind="prune_layers",
    recipe="prune-layers",
    flags=(
        Flag(
            "--keep", "keep", "Number of layers that stay, or half; several, as 5,4,3, when criteria are compared.",
            metavar="N", convert=_layers, family="target", several=True,
        ),
        Flag(
            "--drop", "drop", "Number of layers to remove.", kind="int", convert=above_zero, family="target"
        ),
        Flag(
            "--max-drop", "max_drop", "Maximum drop of the main metric on validation, in percentage points: remove as "
            "many layers as it allows.", kind="float", metavar="POINTS", family="target",
        ),
        Flag(
            "--target-latency", "target_latency", "Maximum median latency on this device, such as 5ms: remove as few "
            "layers as it needs.", kind="ms", convert=above_zero, family="target",
        ),
        Flag(
            "--criterion", "criterion", "Criterion that chooses the layers; all, or several as cka,greedy-loss: "
            "compare criteria.", metavar="NAME", convert=part(PACKAGE, [ALL]), known=part_names(PACKAGE, [ALL]),
            several=True,
        ),
        Flag(
            "--protect", "protect", "Layers that always stay, counted from 0: 0,5.", metavar="LAYERS",
            convert=numbers("0,5"),
        ),
        Flag(
            ROUND, "", "Remove K layers per round, with recovery training after each round.", "training", "int", "K",
            low=1, high=511,
        ),
        *RECOVERY,
        NO_RECOVER,
        SEEDS,
        Flag(
            SUBSETS, "", "When criteria are compared: also train N random subsets of layers, as a baseline.",
            "training", "int", "N", low=1, high=1000,
        ),
        Flag("--explain", "", "Print why each layer was removed.", "output", "switch"),
    ),
    families={
        "target": Family(("keep", "drop", "max_drop", "target_latency", "layers"), "each sets how many layers stay")
    },
)  # fmt: skip

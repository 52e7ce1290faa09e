"""The flags of `compress prune-width`, and what they mean in a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from compress.errors import UserError
from compress.stages.shared.flags import (
    NO_RECOVER,
    RECOVERY,
    SEEDS,
    Edit,
    Family,
    Flag,
    Given,
    Table,
    above_zero,
    complement,
    number_or_list,
    part,
    part_names,
    repeatable,
    require_recovery,
)  # fmt: skip

if TYPE_CHECKING:
    from compress.recipe import Recipe

PACKAGE = "compress.stages.prune_width.importance"
ROUNDS = "--prune-rounds"


def _from_one(value: int, flag: str) -> int:
    if value < 1:
        raise UserError(f"{value} is not possible", where=flag, do="give a number from 1")
    return value


def _edits(recipe: Recipe, place: int, given: Given) -> Iterator[Edit]:
    budgets = [name for name in BUDGETS if given[name[2:].replace("-", "_")] is not None]
    counts = [name for name in COUNTS if given[name[2:].replace("-", "_")] is not None]
    if len(budgets) > 1 or (budgets and counts):
        why = "each sets how many heads and neurons stay"
        raise UserError(f"{' and '.join(budgets + counts)} together", why=why, do="give one of them")
    if given["prune_rounds"] is not None:
        require_recovery(given, ROUNDS, "the model recovers between rounds")
    return iter(())


def rounds(recipe: Recipe, place: int, given: Given) -> Iterator[Edit]:
    """--prune-rounds, of a recipe with the other flags: the cut, and what follows it, so often along a cubic curve,
    which takes most at first (Zhu and Gupta, arXiv 1710.01878). Raises UserError."""
    count = given["prune_rounds"]
    if count is None:
        return
    rows: list[dict[str, Any]] = [stage.model_dump(mode="json") for stage in recipe.stages]
    rest = repeatable(rows[place + 1 :])
    if any(row["kind"] == "prune_width" for row in rest):
        raise UserError(f"recipe {recipe.name} prunes in several rounds already", where=ROUNDS, do=f"remove {ROUNDS}")
    made = rows[:place]
    for number in range(1, count + 1):
        made += [{**rows[place], "schedule": 1 - (1 - number / count) ** 3}, *rest]
    yield Edit("stages", made, f"{ROUNDS} {count}")


BUDGETS = ("--keep", "--target-params", "--target-flops", "--target-latency")
COUNTS = ("--num-heads", "--intermediate-size")
KEYS = (
    "keep_heads", "intermediate_size", "hidden", "head_width", "ratio", "target_params", "target_flops",
    "target_latency",
)  # fmt: skip
"""Keys that say how much goes: a flag for one of them replaces all of the recipe's."""

TABLE = Table(
    kind="prune_width",
    recipe="prune-width",
    flags=(
        Flag(
            "--num-heads", "keep_heads", "Attention heads that stay in each layer: a number, or a list with one number "
            "per layer.", metavar="N", convert=number_or_list("6,6,4"), family="size",
        ),
        Flag(
            "--intermediate-size", "intermediate_size", "Feed-forward neurons that stay in each layer: a number, or a "
            "list with one number per layer.", metavar="N", convert=number_or_list("6,6,4"), family="size",
        ),
        Flag(
            "--hidden-size", "hidden", "Channels of the hidden states that stay.", kind="int", metavar="N",
            convert=_from_one, family="size",
        ),
        Flag(
            "--head-size", "head_width", "Channels of each head that stay.", kind="int", metavar="N", convert=_from_one,
            family="size",
        ),
        Flag(
            "--keep", "ratio", "Share of heads and neurons that stays, e.g. 0.5.", kind="float", metavar="SHARE",
            convert=complement, family="size",
        ),
        Flag(
            "--target-params", "target_params", "Maximum number of parameters: 12M, or 50% of the model's.",
            kind="amount", convert=above_zero, family="size",
        ),
        Flag(
            "--target-flops", "target_flops", "Maximum number of operations for one sequence: 1.5G, or 50% of the "
            "model's.", kind="amount", convert=above_zero, family="size",
        ),
        Flag(
            "--target-latency", "target_latency", "Maximum median latency on this device, such as 5ms.", kind="ms",
            convert=above_zero, family="size",
        ),
        Flag(
            "--non-uniform", "uneven", "Let each layer keep a different number, by ranking all layers together.",
            kind="switch",
        ),
        Flag(
            "--importance", "importance", "How the importance of heads and neurons is estimated.", metavar="NAME",
            convert=part(PACKAGE), known=part_names(PACKAGE),
        ),
        Flag(
            ROUNDS, "", "Prune in N rounds, the largest first, with recovery training after each.", "training", "int",
            "N", low=1, high=64,
        ),
        *RECOVERY,
        NO_RECOVER,
        SEEDS,
    ),
    families={"size": Family(KEYS)},
    edits=_edits,
    again=rounds,
)  # fmt: skip

"""The flags of `compress factorize`, and what they mean in a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

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
    part,
    part_names,
    share,
)

if TYPE_CHECKING:
    from compress.recipe import Recipe

METHODS = "compress.stages.factorize.methods"


def _edits(recipe: Recipe, place: int, given: Given) -> Iterator[Edit]:
    if given["allocation"] is not None and given["rank"] is not None:
        why = "--rank gives every matrix the same rank"
        raise UserError("has no effect with --rank", where="--allocation", why=why, do="remove one of the two")
    return iter(())


TABLE = Table(
    kind="factorize",
    recipe="factorize",
    flags=(
        Flag(
            "--keep", "ratio", "Share of the parameters in the layers' matrices that stays, e.g. 0.5.", kind="float",
            metavar="SHARE", convert=share, family="size",
        ),
        Flag(
            "--rank", "rank", "The same rank for every matrix.", kind="int", metavar="R", convert=above_zero,
            family="size",
        ),
        Flag(
            "--max-mb", "max_mb", "Maximum size of the whole model in fp32, in megabytes.", kind="float",
            metavar="MB", convert=above_zero, family="size",
        ),
        Flag(
            "--method", "method", "Factorization method.", metavar="NAME", convert=part(METHODS),
            known=part_names(METHODS),
        ),
        Flag(
            "--allocation", "allocation", "How ranks are spread over the matrices: sensitivity: by how much each error "
            "changes the predictions; error: by the errors alone; uniform: the same share everywhere.",
            choices=("sensitivity", "error", "uniform"),
        ),
        Flag(
            "--only-faster", "only_faster", "Factorize only matrices whose low-rank factors are faster here.",
            kind="switch",
        ),
        *RECOVERY,
        NO_RECOVER,
        SEEDS,
    ),
    families={"size": Family(("ratio", "rank", "max_mb"), "each sets how much stays")},
    edits=_edits,
)  # fmt: skip

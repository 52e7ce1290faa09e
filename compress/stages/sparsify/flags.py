"""The flags of `compress sparsify`, and what they mean in a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from compress.errors import UserError
from compress.stages.shared.flags import NO_RECOVER, SEEDS, Edit, Flag, Given, Table, part, require_recovery

if TYPE_CHECKING:
    from compress.recipe import Recipe

METHODS = "compress.stages.sparsify.methods"


def _supported(sparsity: str, flag: str) -> str:
    from compress.encoder.config.sparsity import PATTERN

    if sparsity != PATTERN:
        why = f"GPUs only accelerate {PATTERN}"
        raise UserError(f"sparsity '{sparsity}' is not supported", where=flag, why=why, do=f"use {PATTERN}")
    return sparsity


def _edits(recipe: Recipe, place: int, given: Given) -> Iterator[Edit]:
    if given["steps"] is None:
        return
    require_recovery(given, "--steps", "needs recovery training")
    after = [i for i in range(place + 1, len(recipe.stages)) if hasattr(recipe.stages[i], "training")]
    if not after:
        raise UserError(f"recipe {recipe.name} has no recovery training", where="--steps", do="remove --steps")
    training, origin = f"stages.{after[0]}.training", f"--steps {given['steps']}"
    yield Edit(f"{training}.epochs", None, origin)
    yield Edit(f"{training}.steps", given["steps"], origin)


TABLE = Table(
    kind="sparsify",
    recipe="sparsify",
    flags=(
        Flag(
            "--sparsity", "sparsity", "N:M sparsity; only 2:4 is supported: two of every four weights stay.",
            metavar="N:M", convert=_supported,
        ),
        Flag(
            "--method", "method", "Sparsification method: reconstruct (default), activation or magnitude.",
            metavar="NAME", convert=part(METHODS),
        ),
        Flag(
            "--steps", "", "Optimizer steps of recovery training (default: the recipe's, one epoch).", "training",
            "int", "N", low=1,
        ),
        NO_RECOVER,
        SEEDS,
    ),
    edits=_edits,
)  # fmt: skip

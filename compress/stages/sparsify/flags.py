"""The flags of `compress sparsify`, and what they mean in a recipe."""

from __future__ import annotations

from compress.errors import UserError
from compress.stages.shared.flags import NO_RECOVER, RECOVERY, SEEDS, Flag, Table, part, part_names

METHODS = "compress.stages.sparsify.methods"


def _sparsities() -> tuple[str]:
    from compress.encoder.config.layer_shape import PATTERN

    return (PATTERN,)


def _supported(sparsity: str, flag: str) -> str:
    from compress.encoder.config.layer_shape import PATTERN

    if sparsity != PATTERN:
        why = f"GPUs only accelerate {PATTERN}"
        raise UserError(f"sparsity '{sparsity}' is not supported", where=flag, why=why, do=f"use {PATTERN}")
    return sparsity


TABLE = Table(
    kind="sparsify",
    recipe="sparsify",
    flags=(
        Flag(
            "--sparsity", "sparsity", "N:M sparsity: of every M weights N stay.",
            metavar="N:M", convert=_supported, known=_sparsities,
        ),
        Flag(
            "--method", "method", "Sparsification method.", metavar="NAME", convert=part(METHODS),
            known=part_names(METHODS),
        ),
        *RECOVERY,
        NO_RECOVER,
        SEEDS,
    ),
)  # fmt: skip

"""The flags of `compress finetune`, and what they mean in a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from compress.errors import UserError
from compress.stages.shared.flags import (
    SEEDS,
    TRAINING,
    Flag,
    Given,
    Keys,
    Table,
    above_zero,
    is_given,
    part_kind,
    part_names,
)

if TYPE_CHECKING:
    from compress.recipe import Recipe

TUNINGS = "compress.stages.finetune.tunings"
LAST = "last-N"
LORA = ("--lora-rank", "--lora-alpha")


def _known() -> Sequence[str]:
    return [LAST if name == "last" else name for name in part_names(TUNINGS)()]


def _tuning(name: str, flag: str) -> dict[str, Any]:
    """`lora` → its row, `last-2` → that of the last two layers. Raises UserError."""
    kind, _, count = name.partition("-")
    if kind == "last":
        if not (count.isascii() and count.isdigit()) or int(count) == 0:
            why = "last needs a number of layers"
            raise UserError(f"'{name}' is not possible", where=flag, why=why, do=f"e.g. {flag} last-2")
        return {"kind": kind, "layers": int(count)}
    return {"kind": part_kind(TUNINGS, name, flag, (LAST,))}


def _of_lora(key: str) -> Callable[[Any, str], Keys]:
    return lambda value, flag: Keys({"tune.kind": "lora", f"tune.{key}": above_zero(value, flag)})


def _check(recipe: Recipe, place: int, given: Given) -> None:
    """Raises UserError for options of LoRA beside another tuning."""
    for name in LORA:
        if is_given(given.get(name.removeprefix("--").replace("-", "_"))) and given["tune"] not in (None, "lora"):
            do = f"use --tune lora, or remove {name}"
            raise UserError(f"has no effect with --tune {given['tune']}", where=name, do=do)


TABLE = Table(
    kind="finetune",
    recipe="finetune",
    every=True,
    flags=(
        Flag(
            "--new-head", "new_head", "Replace a task head that has other labels with a new one.", kind="switch",
        ),
        Flag(
            "--tune", "tune", "Which parameters are trained, beside the task head. lora: low-rank adapters, merged "
            "into the weights at the end; bitfit: biases; last-N: the last N layers. Default: all.", metavar="NAME",
            convert=_tuning, known=_known,
        ),
        Flag(
            "--lora-rank", "tune.rank", "Rank of the LoRA adapters; implies --tune lora. Default: 8.", kind="int",
            metavar="R", convert=_of_lora("rank"),
        ),
        Flag(
            "--lora-alpha", "tune.alpha", "Adapters are scaled by ALPHA / rank; implies --tune lora. Default: twice "
            "the rank.", kind="float", metavar="ALPHA", convert=_of_lora("alpha"),
        ),
        *TRAINING,
        SEEDS,
    ),
    check=_check,
)  # fmt: skip

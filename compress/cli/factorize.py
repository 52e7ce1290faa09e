"""Split the matrices of a trained encoder in two thin ones, and heal it by distillation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import TeacherName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("model", type=TeacherName(), required=False)
@click.option("--ratio", type=float, metavar="SHARE", help="Of the numbers in the layers' matrices, what stays: 0.5.")
@click.option("--rank", type=int, metavar="R", help="The same rank for every matrix.")
@click.option("--mb", "max_mb", type=float, metavar="MB", help="What the whole model may take in fp32.")
@click.option("--method", metavar="NAME", help="whitened (default), svd, fwsvd or asvd.")
@click.option(
    "--allocation",
    type=click.Choice(["sensitivity", "error", "uniform"]),
    help="Ranks by what errors do to the answers (default), by the errors alone, or the same share of every matrix.",
)
@click.option("--only-faster", is_flag=True, help="Leave matrices whole whose thin ones are not faster here.")
@click.option("--no-heal", is_flag=True, help="Split and measure; do not distil.")
@click.option("--seeds", type=click.IntRange(2, 100), help="Repeat with so many seeds, and tell mean and spread.")
@shared("recipe", "data", "compute", "output", "store", "experiment")
def command(
    options: RunOptions,
    model: str | None,
    ratio: float | None,
    rank: int | None,
    max_mb: float | None,
    method: str | None,
    allocation: str | None,
    only_faster: bool,
    no_heal: bool,
    seeds: int | None,
) -> None:
    """Make the matrices of MODEL's layers products of two thin ones, then heal it by distilling MODEL into it.

    MODEL is a folder, runs:/..., models:/..., or a recipe that makes one. Measured before, after the split and after
    healing.

    \b
      compress factorize FOLDER --ratio 0.5 --data DATA
      compress factorize FOLDER --mb 60 --data DATA --no-heal
      compress factorize FOLDER --ratio 0.75 --method svd --allocation uniform --data DATA --no-heal

    It saves bytes more than time: two thin products take longer for each operation than one whole product does.
    Embedding tables are factorized by compress share --pattern none --embedding-size E.
    """
    from compress.cli.flags.factorize import Wanted, factorize

    heal = not no_heal
    factorize(Wanted(model, ratio, rank, max_mb, method, allocation, only_faster, heal, seeds), options)

"""Set two of every four weights of an encoder to zero (2:4), and recover by distillation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import TeacherName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("model", type=TeacherName(), required=False)
@click.option("--pattern", metavar="N:M", help="2:4, two of every four weights stay: the one that GPUs skip.")
@click.option("--method", metavar="NAME", help="reconstruct (default), activation or magnitude.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Steps of recovery; one epoch when not given.")
@click.option("--no-recover", is_flag=True, help="Cut and measure; do not distil.")
@click.option("--seeds", type=click.IntRange(2, 100), help="Repeat with so many seeds, and tell mean and spread.")
@shared("recipe", "data", "compute", "output", "store", "experiment")
def command(
    options: RunOptions,
    model: str | None,
    pattern: str | None,
    method: str | None,
    steps: int | None,
    no_recover: bool,
    seeds: int | None,
) -> None:
    """Make the matrices of MODEL's layers 2:4 sparse, then recover by distilling MODEL into it; zeros stay zeros.

    MODEL is a folder, runs:/..., models:/..., or a recipe that makes one. Measured before, after cutting and after
    recovery.

    \b
      compress sparsify FOLDER --data DATA
      compress sparsify FOLDER --data DATA --method magnitude --no-recover
      compress sparsify FOLDER --data DATA --steps 300

    NOTHING GETS SMALLER OR FASTER on a CPU, nor on a GPU below compute capability 8.0: the zeros are stored and
    computed. On newer GPUs --runtime torch-sparse skips them; measure it there (compress benchmark). The folder loads
    in transformers as a dense model with zeros.
    """
    from compress.cli.flags.sparsify import Wanted, sparsify

    sparsify(Wanted(model, pattern, method, steps, not no_recover, seeds), options)

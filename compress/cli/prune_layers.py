"""Remove layers of an encoder, and recover by distillation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import Milliseconds, TeacherName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("model", type=TeacherName(), required=False)
@click.option("--keep", metavar="N", help="How many layers stay; in the contest several: 5,4,3.")
@click.option("--drop", type=int, help="How many layers go.")
@click.option(
    "--max-drop", type=float, metavar="POINTS", help="Remove as many as cost at most so many points on validation."
)
@click.option(
    "--target-latency", type=Milliseconds(), help="Remove as few as bring the median latency on this device to it."
)
@click.option(
    "--criterion",
    metavar="NAME",
    help="What chooses the layers (cka when not given); all, or several as cka,greedy-loss: the contest.",
)
@click.option("--protect", metavar="LAYERS", help="Layers that stay in any case, counted from 0: 0,5.")
@click.option(
    "--step", type=click.IntRange(1, 511), metavar="K", help="Remove K layers at a time, and recover between."
)
@click.option("--no-recover", is_flag=True, help="Cut and measure; do not distil.")
@click.option("--explain", is_flag=True, help="Say why each layer went.")
@click.option("--seeds", type=click.IntRange(2, 100), help="Repeat with so many seeds, and tell all together.")
@click.option(
    "--draws",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="In the contest: recover N sets of layers drawn by a coin too, which the criteria must beat.",
)
@shared("recipe", "data", "compute", "output", "store", "experiment")
def command(
    options: RunOptions,
    model: str | None,
    keep: str | None,
    drop: int | None,
    max_drop: float | None,
    target_latency: float | None,
    criterion: str | None,
    protect: str | None,
    step: int | None,
    no_recover: bool,
    explain: bool,
    seeds: int | None,
    draws: int | None,
) -> None:
    """Remove layers of MODEL, and recover by distilling MODEL into what is left.

    MODEL is a folder, runs:/…, models:/…, or a recipe that makes one. It is measured before, after cutting and after
    recovery.

    \b
      compress prune-layers FOLDER --keep 3 --data DATA
      compress prune-layers FOLDER --target-latency 5ms --criterion greedy-loss --data DATA --explain
      compress prune-layers FOLDER --criterion all --keep 5,4,3 --seeds 3 --data DATA
      compress prune-layers FOLDER --criterion cka,greedy-loss,uniform --keep 3 --draws 8 --data DATA

    Criteria that read text alone: cka, cka-clusters, block-influence, angular. That measure losses on labels: fisher,
    taylor, leave-one-out, greedy-loss, exhaustive, learned-gates. Baselines: uniform, first, last, random.
    """
    from compress.cli.flags.prune_layers import Wanted, prune_layers

    wanted = Wanted(
        model, keep, drop, max_drop, target_latency, criterion, protect, step, not no_recover, explain, seeds, draws
    )  # fmt: skip
    prune_layers(wanted, options)

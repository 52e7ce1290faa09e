"""Share the layers of a trained encoder and factorize its embeddings, and heal it by distillation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli.options import TeacherName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("model", type=TeacherName(), required=False)
@click.option(
    "--groups",
    metavar="N",
    help="How many runs of neighbouring layers are one each; or the groups themselves: [[0,1],[2,3],[4,5]].",
)
@click.option(
    "--pattern",
    metavar="NAME",
    help="all, none, attention, feed-forward, contiguous, sequence, cycle, cycle-reverse, answers, cka, cka-free.",
)
@click.option("--start", metavar="NAME", help="Of the shared weights: mean, chosen, fisher or activation.")
@click.option("--shared-vectors", is_flag=True, help="Share norms and biases as well, as ALBERT does.")
@click.option(
    "--residual-rank", type=int, metavar="R", help="Low rank that each layer adds to what it shares; 0: none."
)
@click.option(
    "--shrink-residuals", is_flag=True, help="Let residuals fade out while healing: the model that is kept has none."
)
@click.option("--embedding-size", type=int, metavar="E", help="Width of the factorized embedding tables.")
@click.option("--embedding-error", type=float, metavar="SHARE", help="The smallest width within this error, e.g. 0.05.")
@click.option("--embedding-mb", type=float, metavar="MB", help="The largest width whose tables take at most so much.")
@click.option(
    "--general-teacher",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The pretrained encoder that MODEL was made from, for recipes that start on a corpus (share-general).",
)
@click.option("--no-heal", is_flag=True, help="Convert and measure; do not distil.")
@click.option("--seeds", type=click.IntRange(2, 100), help="Repeat with so many seeds, and tell mean and spread.")
@shared("recipe", "corpus", "data", "compute", "output", "store", "experiment")
def command(
    options: RunOptions,
    model: str | None,
    groups: str | None,
    pattern: str | None,
    start: str | None,
    shared_vectors: bool,
    residual_rank: int | None,
    shrink_residuals: bool,
    embedding_size: int | None,
    embedding_error: float | None,
    embedding_mb: float | None,
    general_teacher: Path | None,
    no_heal: bool,
    seeds: int | None,
) -> None:
    """Share the layers of MODEL and factorize its embeddings, then heal it by distilling MODEL into it.

    MODEL is a folder, runs:/..., models:/..., or a recipe that makes one. Measured before, after conversion and after
    healing.

    \b
      compress share FOLDER --groups 3 --embedding-size 128 --residual-rank 16 --data DATA
      compress share FOLDER --pattern none --embedding-error 0.05 --data DATA
      compress share FOLDER --groups 2 --pattern cka --start activation --data DATA --no-heal

    It buys storage, not time: every layer is still computed. The recipe share-gradual ties layers in two steps and then
    drops the residuals; share-pull draws layers together before it merges them; share-general heals on plain text
    first, then on the task.
    """
    from compress.cli.flags.share import Wanted, share

    sizes = {"size": embedding_size, "error": embedding_error, "max_mb": embedding_mb}
    wanted = Wanted(
        model, groups, pattern, start, shared_vectors, residual_rank, shrink_residuals, sizes, not no_heal, seeds
    )
    share(wanted, options, {} if general_teacher is None else {"general_teacher": general_teacher})

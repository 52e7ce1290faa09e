"""Run all stages of a recipe in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli._verbs import run_stages
from compress.cli.options import RecipeName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("name", metavar="RECIPE", type=RecipeName())
@click.option("--until", metavar="STAGE", help="The last stage that runs: its name, kind or number; --resume goes on.")
@click.option("--from", "begin", metavar="STAGE", help="Make this stage and those behind it anew, reusing the others.")
@click.option("--no-cache", is_flag=True, help="Make every stage anew, whatever earlier runs made.")
@shared("overrides", "model", "teacher", "data", "corpus", "compute", "onnx", "output", "store", "experiment")
def command(options: RunOptions, name: str, until: str | None, begin: str | None, no_cache: bool) -> None:
    """Run all stages of RECIPE in order, each a run below one parent, and tell what each cost and gave.

    \b
      compress run tiny-cpu --model FOLDER --data DATA
      compress run tiny-cpu --model FOLDER --data DATA --until 1-prune_vocab
      compress run ./chain.yaml --from quantize

    A stage that an earlier run made of the same input, data, part of the recipe and seed is taken from there, wherever
    that run lies; so a changed last stage reruns only itself. --model is what the chain starts from, and teaches where
    --teacher names no other.
    """
    from compress.cli.flags.run import asked

    run_stages(asked(name, options, until, begin, not no_cache), name, None)

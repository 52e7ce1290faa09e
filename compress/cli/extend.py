"""Extend a model to longer texts: more positions, sliding-window attention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._help import Command
from compress.cli._types import IntRange, ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option(
    "--max-positions",
    type=IntRange(1, 1_000_000),
    required=True,
    help="Maximum sequence length in tokens; the learned positions are repeated.",
)
@click.option(
    "--window",
    type=IntRange(1, 1_000_000),
    help="Sliding-window attention: tokens that each token attends to on each side; cost is linear in the length.",
)
@click.option(
    "--global-tokens",
    type=IntRange(0, 1_000_000),
    help="Number of first tokens with global attention (default with --window: 1, [CLS]).",
)
@click.option(
    "--longformer",
    is_flag=True,
    help="With --window: write a Longformer folder, which transformers loads. Its global tokens get projections of "
    "their own; by default: 1 in sequence classification, else none.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Output folder.")
@click.option("--dry-run", is_flag=True, help="Print the planned changes; write nothing.")
@shared("push")
def command(
    options: RunOptions,
    model: str,
    max_positions: int,
    window: int | None,
    global_tokens: int | None,
    longformer: bool,
    output: Path | None,
    dry_run: bool,
) -> None:
    """Extend MODEL to sequences longer than 512 tokens, as Longformer extends RoBERTa.

    \b
      compress extend FOLDER --max-positions 4096 --window 256 --output runs/long
      compress finetune --model runs/long --data DATA --max-length 4096

    Without --window every token still attends to all others, and transformers still loads the folder. With --window
    only compress does, or with --longformer both.
    """
    import dataclasses

    from compress.commands.extend import extend_folder

    changed = dataclasses.replace(options, output=output, dry_run=dry_run)
    extend_folder(model, max_positions, window, global_tokens, changed, longformer=longformer)

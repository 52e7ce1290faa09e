"""Let a model read longer texts: more positions, attention through a window."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli.options import Command, ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option(
    "--max-positions",
    type=click.IntRange(1, 1_000_000),
    required=True,
    help="Longest text in tokens; the learned positions are repeated.",
)
@click.option(
    "--window",
    type=click.IntRange(1, 1_000_000),
    help="Tokens that a token sees to each side, in every layer: cost grows with the length, not with its square.",
)
@click.option(
    "--global-tokens",
    type=click.IntRange(0, 1_000_000),
    help="First tokens that see all others and are seen by all; not given: 1, [CLS], where --window is.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where the model goes.")
@click.option("--dry-run", is_flag=True, help="Say what would be made; write nothing.")
@shared()
def command(
    options: RunOptions,
    model: str,
    max_positions: int,
    window: int | None,
    global_tokens: int | None,
    output: Path | None,
    dry_run: bool,
) -> None:
    """Make of MODEL one that reads texts of more than 512 tokens, as Longformer was made of RoBERTa.

    \b
      compress extend FOLDER --max-positions 4096 --window 256 --output runs/long
      compress finetune --model runs/long --data DATA --max-length 4096

    Without --window every token still sees all others, and transformers still loads the folder.
    """
    import dataclasses

    from compress.commands.extend import extend_folder

    extend_folder(
        model, max_positions, window, global_tokens, dataclasses.replace(options, output=output, dry_run=dry_run)
    )

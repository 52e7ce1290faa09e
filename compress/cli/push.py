"""Upload a model folder to the Hugging Face Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli._help import Command
from compress.cli._types import HubName, ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.argument("repository", metavar="hf:ORG/NAME", type=HubName())
@click.option("--private", is_flag=True, help="Create the repository as a private one.")
@click.option("--message", metavar="TEXT", help="Commit message (default: names the folder and this version).")
@shared()
def command(options: RunOptions, model: str, repository: str, private: bool, message: str | None) -> None:
    """Upload the folder of MODEL to a repository of the Hugging Face Hub; its README.md becomes the model's page.

    \b
      compress push runs/distilbert/student hf:my-org/small-reviews --private

    The repository is created if it does not exist. Files of an earlier model in it are replaced; other files stay.
    Log in once with `hf auth login`, or set HF_TOKEN.
    """
    from compress.console import Console
    from compress.modelfolder.push import HubRepository
    from compress.modelfolder.resolve import resolve
    from compress.onnx.model_file import require_publishable

    folder, console = resolve(model), Console(quiet=options.quiet, json=options.json)
    require_publishable(folder)
    pushed = HubRepository(repository, private).push(folder, console, message)
    console.document({"folder": str(folder), **vars(pushed)})

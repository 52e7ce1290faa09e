"""Print the shell code that completes commands, options and their values."""

from __future__ import annotations

import click

from compress.cli._help import Command
from compress.cli.main import COMPLETE, debug_option
from compress.errors import UserError


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@debug_option
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the shell code that completes commands, options and their values: recipes, criteria, schemes, data sets.

    \b
      compress completion fish > ~/.config/fish/completions/compress.fish

    bash: add `eval "$(compress completion bash)"` to ~/.bashrc; zsh likewise in ~/.zshrc.
    """
    from click.shell_completion import get_completion_class

    root = context.find_root()
    completer = get_completion_class(shell)
    if completer is None:
        raise UserError(f"no completion for {shell}", do="use bash, zsh or fish")
    print(completer(root.command, {}, "compress", COMPLETE).source())

"""MODEL as an argument and as --model: each command that takes one of them takes the other too."""

from __future__ import annotations

import functools
from typing import Any

import click

from compress.cli._help import Option
from compress.errors import UserError

NAME = "model"
OTHER = "model_again"


def accept_both(command: click.Command, name: str) -> None:
    """Give a command with the argument MODEL the flag --model, or the other way round. Twice changes nothing."""
    models = [one for one in command.params if one.name == NAME]
    if len(models) != 1 or any(one.name == OTHER for one in command.params):
        return
    (known,) = models
    if name in ("run", "push") or known.nargs != 1 or known.multiple:
        return  # the first argument of `compress run` is a recipe; `compress push` has a second one
    required, known.required = known.required, False
    if isinstance(known, click.Argument):
        added: click.Parameter = Option(
            ["--model", OTHER], type=known.type, section="input", help="The same as the argument MODEL."
        )
        command.params.append(added)
    else:
        added = click.Argument([OTHER], type=known.type, required=False, metavar="[MODEL]")
        command.params.insert(0, added)
    called = command.callback
    assert called is not None

    @functools.wraps(called)
    def run(*args: Any, **values: Any) -> Any:
        other = values.pop(OTHER)
        if other is not None and values[NAME] is not None:
            raise UserError("MODEL and --model together", why="both name the model", do="give one of them")
        if other is not None:
            values[NAME] = other
        if required and values[NAME] is None:
            context = click.get_current_context(silent=True)
            raise click.MissingParameter(ctx=context, param=known, param_hint="'MODEL'")
        return called(*args, **values)

    command.callback = run

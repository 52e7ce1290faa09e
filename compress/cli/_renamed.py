"""Flags that have a new name: the old one works for one release, is not in the help, and prints a warning."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from compress.errors import UserError
from compress.stages.shared.flags import is_given


@dataclass(frozen=True)
class NewName:
    """The new name of a flag. convert: the old flag's value → the new one's; note: what else changed."""

    to: str
    convert: Callable[[Any], Any] | None = None
    note: str = ""


class RenamedChoice(click.Choice):
    """Values of a flag, of which some had another name: the old one still works, with a warning."""

    def __init__(self, choices: Sequence[str], old: Mapping[str, str]) -> None:
        super().__init__(choices)
        self._old = old

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value by its new name."""
        if value in self._old:
            _warn(f"{param.opts[0] if param else ''} {value}".strip(), NewName(self._old[value]), "")
            value = self._old[value]
        return super().convert(value, param, ctx)


RENAMED: Mapping[str, Mapping[str, NewName]] = {
    "distill": {
        "--start": NewName("--init"),
        "--hidden": NewName("--hidden-size"),
        "--heads": NewName("--num-heads"),
        "--feed-forward": NewName("--intermediate-size"),
    },
    "share": {
        "--start": NewName("--init"),
        "--shared-vectors": NewName("--share-norms-and-biases"),
        "--embedding-mb": NewName("--embedding-max-mb"),
        "--no-heal": NewName("--no-recover"),
    },
    "factorize": {
        "--ratio": NewName("--keep"),
        "--mb": NewName("--max-mb"),
        "--no-heal": NewName("--no-recover"),
    },
    "sparsify": {"--pattern": NewName("--sparsity")},
    "prune-layers": {"--draws": NewName("--random-subsets"), "--step": NewName("--layers-per-round")},
    "prune-width": {
        "--ratio": NewName("--keep", lambda share: round(1 - share, 12), ", the share that stays"),
        "--keep-heads": NewName("--num-heads"),
        "--keep-ffn": NewName("--intermediate-size"),
        "--hidden": NewName("--hidden-size"),
        "--head-width": NewName("--head-size"),
        "--uneven": NewName("--non-uniform"),
    },
}
"""Command → old flag → its new name."""


def accept_renamed(command: click.Command, name: str) -> None:
    """Give a command its old flags, hidden. Doing it twice changes nothing."""
    known = {flag: option for option in command.params if isinstance(option, click.Option) for flag in option.opts}
    old = {flag: new for flag, new in RENAMED.get(name, {}).items() if flag not in known}
    if not old:
        return
    targets = {flag: known[new.to] for flag, new in old.items()}
    for flag, target in targets.items():
        settings: dict[str, Any] = {"is_flag": True} if target.is_flag else {"type": target.type}
        command.params.append(
            click.Option([flag, _hidden(flag)], hidden=True, help=f"Old name of {old[flag].to}.", **settings)
        )
    called = command.callback
    assert called is not None

    @functools.wraps(called)
    def run(*args: Any, **values: Any) -> Any:
        for flag, new in old.items():
            value, key = values.pop(_hidden(flag)), targets[flag].name
            if not is_given(value):
                continue
            if is_given(values[key]):
                raise UserError(f"{flag} and {new.to} together", why=f"{flag} is the old name", do=f"remove {flag}")
            values[key] = value if new.convert is None else new.convert(value)
            _warn(flag, new, "" if value is True else f" {values[key]}")
        return called(*args, **values)

    command.callback = run


def _hidden(flag: str) -> str:
    return f"renamed_{flag[2:].replace('-', '_')}"


def _warn(flag: str, new: NewName, value: str) -> None:
    from compress.training.ranks import ranks

    if ranks().leads:
        click.echo(f"warning: {flag} is deprecated; use {new.to}{value}{new.note}", err=True)

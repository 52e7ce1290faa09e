"""Messages and help texts use standard terms: home-made words do not come back into the texts that the code prints."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from compress.cli.main import cli

COMPRESS = Path(__file__).parents[1] / "compress"
AREAS = (
    "analyze",
    "api",
    "cli",
    "commands",
    "compare",
    "console.py",
    "errors.py",
    "experiments",
    "fit",
    "measure",
    "registry.py",
    "report",
    "run",
    "stages",
    "tracking",
)
"""Folders and files of `compress` whose texts are held to the list."""
STILL_TO_ADD = ("the other folders of compress", "README.md and docs", "recipes")
PHRASES = (
    "a coin",
    "anew",
    "answered otherwise",
    "answers alike",
    "are refused",
    "as it should be",
    "asked twice",
    "cannot stay",
    "certified were",
    "commonest",
    "cut texts differently",
    "do probabilities hold",
    "evenness",
    "for want of",
    "healed",
    "hidden pieces",
    "holds a run",
    "in place of",
    "is born",
    "is no number",
    "is told",
    "judged before",
    "leave it out",
    "likeness",
    "made now",
    "mistyped",
    "no contest",
    "nothing bounds",
    "on which data",
    "on which texts",
    "one of both",
    "pieces of its vocabulary",
    "sees all",
    "stage before is",
    "teachers together",
    "than there is",
    "the one before",
    "thin matrices",
    "thrown away",
    "throws away",
    "timed in turn",
    "to go on",
    "vectors of texts",
    "were asked for",
    "what it is given",
    "what it was made of",
    "where does the",
    "would answer nothing",
    "would stay",
)
FORBIDDEN = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)
HOME_MADE = re.compile(r"\b(asked|born|coin|contest|heal|healing|pieces|told|twin)\b", re.IGNORECASE)
"""Words that a help text does not use."""
ALLOWED = (
    r"--train heal\b|\[none\|heal\|full\]|\bheal: distil",  # the value of the flag of `fit`
    r"\[tradeoffs\|lineage\|contest\]|\bcontest: the models",  # the value of the flag of `ui`
)
"""Where one of them is the name of a value."""


@pytest.mark.parametrize("area", AREAS)
def test_texts_use_standard_terms(area: str) -> None:
    place = COMPRESS / area
    found = []
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        for line, text in texts_of(ast.parse(path.read_text(encoding="utf-8"))):
            found += [f"{path}:{line}: {text}"] if FORBIDDEN.search(text) else []
    assert not found, "\n".join(found)


def texts_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of every string that is not a docstring; one of an f-string without what it interpolates."""
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    inside = {id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in n.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inside:
            yield node.lineno, node.value


@pytest.mark.parametrize("name", ["compress", *sorted(cli.list_commands(click.Context(cli)))])
def test_help_uses_standard_terms(name: str) -> None:
    context = click.Context(cli, info_name="compress")
    if name == "compress":
        helps = [cli.get_help(context)]
    else:
        command = cli.get_command(context, name)
        assert command is not None
        helps = [*helps_of(command, click.Context(command, info_name=name, parent=context))]
    for text in helps:
        plain = re.sub("|".join(ALLOWED), "", " ".join(text.split()))
        assert not FORBIDDEN.search(plain), FORBIDDEN.findall(plain)
        assert not HOME_MADE.search(plain), HOME_MADE.findall(plain)


def helps_of(command: click.Command, context: click.Context) -> Iterator[str]:
    """The help of a command and of those below it."""
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helps_of(below, click.Context(below, info_name=name, parent=context))

"""Messages and help texts use standard terms: home-made words do not come back into the texts that the code prints."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from compress.cli.main import cli

ROOT = Path(__file__).parents[1]
COMPRESS = ROOT / "compress"
PAGES = [
    ROOT / "README.md",
    *sorted(set(ROOT.glob("docs/**/*.md")) - {ROOT / "docs/reference/modules.md"}),
    *sorted(ROOT.glob("recipes/*.yaml")),
]
ROOMS = sorted(p.name for p in COMPRESS.iterdir() if p.name[0] not in "_." and (p.is_dir() or p.suffix == ".py"))
PHRASES = (
    "a coin",
    "a row is needed",
    "anew",
    "answered otherwise",
    "answers alike",
    "answers as the model",
    "are refused",
    "as it should be",
    "asked twice",
    "came apart",
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
    "holds NaN",
    "in place of",
    "is a tensor of its own",
    "is born",
    "is no matrix",
    "is no number",
    "is no quantizer",
    "is not judged by",
    "is told",
    "it was made of",
    "judged before",
    "leave it out",
    "leave one of",
    "leave them out",
    "likeness",
    "made now",
    "mistyped",
    "named twice",
    "no contest",
    "not computed here",
    "nothing bounds",
    "of low rank already",
    "on which data",
    "on which texts",
    "one of both",
    "pieces of its vocabulary",
    "sees all",
    "something of their own",
    "stage before is",
    "stands in for",
    "stands twice",
    "teachers together",
    "than there is",
    "the numbers went bad",
    "the one before",
    "there is no column",
    "there is no row",
    "there is no split",
    "thin matrices",
    "thrown away",
    "throws away",
    "timed in turn",
    "to go on",
    "vectors of texts",
    "was asked for",
    "were asked for",
    "what it is given",
    "what it was made of",
    "where does the",
    "which column is",
    "would answer nothing",
    "would stay",
)
FORBIDDEN = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)
HOME_MADE = re.compile(r"\b(asked|born|coin|contest|heal|healing|pieces|told|twin)\b", re.IGNORECASE)
"""Words that a help text does not use."""
ALLOWED = (
    r"born-again",  # of a paper
    r'"(Thin matrices|Vectors of texts)"',  # headings of benchmarks/RESULTS.md
)


@pytest.mark.parametrize("room", ROOMS)
def test_texts_use_standard_terms(room: str) -> None:
    place = COMPRESS / room
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_and_recipes_use_standard_terms(page: Path) -> None:
    text = " ".join(page.read_text(encoding="utf-8").split())
    plain = re.sub("|".join(ALLOWED), "", text)
    assert not FORBIDDEN.search(plain), FORBIDDEN.findall(plain)
    assert not HOME_MADE.search(plain), HOME_MADE.findall(plain)


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

"""README and the pages of docs/ as tests read them: shell blocks, commands, links, headings."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GENERATED = ROOT / "docs" / "reference"


@dataclass(frozen=True)
class Page:
    """One page of Markdown."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def plain(self) -> str:
        """Without code blocks."""
        return FENCE.sub("", self.text)

    def blocks(self, language: str) -> list[str]:
        return [text for found, text in FENCE.findall(self.text) if found == language]

    def lines(self) -> list[str]:
        """Every command of the shell blocks, comments and continuations undone."""
        text = "\n".join(self.blocks("sh")).replace("\\\n", " ")
        joined = (re.split(r"(?:^|\s)#", line)[0].strip() for line in text.splitlines())
        return [part.strip() for line in joined for part in line.split(" && ") if part.strip()]

    def ours(self) -> list[str]:
        """The `compress …` among them, without what torchrun or a redirection adds."""
        found = (re.sub(r"^torchrun .*? -m compress ", "compress ", line) for line in self.lines())
        return [line.split(" > ")[0].split(" | ")[0] for line in found if line.startswith("compress ")]

    def mentioned(self) -> list[list[str]]:
        """The words after `compress` of each one in running text and tables; not `compress.json`, `compress/cli`."""
        return [shlex.split(m[1]) for m in re.finditer(r"`compress ([a-z][a-z-]*[^`]*)`", self.plain)]

    @cached_property
    def anchors(self) -> set[str]:
        """What links to the page's headings end in."""
        headings = re.findall(r"^#+ (.+)$", self.plain, re.MULTILINE)
        return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}

    def links(self) -> list[str]:
        return re.findall(r"\]\(([^)\s]+)\)", self.plain)


README = Page(ROOT / "README.md")
PAGES = [README, *(Page(path) for path in sorted((ROOT / "docs").rglob("*.md")))]
WRITTEN = [page for page in PAGES if GENERATED not in page.path.parents]
"""By people; the others are made by docs/build_reference.py."""


def page(name: str) -> Page:
    """The page at this path, from the top of the repository."""
    return next(one for one in PAGES if one.name == name)


def parse(group: click.Group, words: list[str], parent: click.Context | None = None) -> None:
    """Parse and check as the command line would, running nothing. Raises click's complaint, or UserError for what the
    flags alone say is wrong."""
    name, command, rest = group.resolve_command(parent or click.Context(group, info_name="compress"), words)
    assert name is not None
    assert command is not None
    with command.make_context(name, list(rest), parent, ignore_unknown_options=False) as context:
        if (before := getattr(command.callback, "before", None)) is not None:
            before(context.params)
        if isinstance(command, click.Group) and rest:
            parse(command, list(rest), context)

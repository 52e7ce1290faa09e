"""The language of a model's texts and its license, where the card that came with it says them."""

from __future__ import annotations

import re
from pathlib import Path

from compress.data.text.language_codes import find_language_codes

CARD = "README.md"
CARD_BYTES = 4 * 2**20

# Not by a YAML parser: cards of embedders carry megabytes of results in the same head.
_HEAD = re.compile(r"\A---[ \t]*\n(.*?)^---", re.DOTALL | re.MULTILINE)
_SAID = re.compile(r"^languages?:(.*(?:\n[ \t]*-.*)*)", re.MULTILINE)
_LICENSE = re.compile(
    r"^license:[ \t]*(?:\n?[ \t]*-[ \t]*)?[\"']?([A-Za-z0-9][A-Za-z0-9.+-]{0,40})[\"']?[ \t]*(?:#.*)?$", re.MULTILINE
)


def read_language(folder: Path) -> tuple[str, ...]:
    """Codes such as `en` from the head of the folder's README.md, as model hubs write it; empty where it says none."""
    said = _SAID.search(_head(folder))
    return () if said is None else find_language_codes(re.sub(r"#.*", "", said[1]))


def read_license(folder: Path) -> str | None:
    """The license's name, such as `apache-2.0`, from the same place; None where it says none."""
    said = _LICENSE.search(_head(folder))
    return None if said is None else said[1].lower()


def _head(folder: Path) -> str:
    """The YAML of a card; empty where there is none."""
    try:
        with (folder / CARD).open("rb") as file:
            text = file.read(CARD_BYTES).decode("utf-8", errors="replace").replace("\r\n", "\n")
    except OSError:
        return ""
    head = _HEAD.match(text)
    return "" if head is None else head[1]

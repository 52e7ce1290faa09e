"""Foreign text on a model card: label names, data names and parents' names, escaped.

A card cannot carry HTML, links or control characters that its author did not write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from compress.errors import printable

_LINKS = {"://": "&#58;//", "www.": "www&#46;", "@": "&#64;"}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~])")


def escape(text: str, limit: int = 200) -> str:
    """Foreign text as plain markdown text on one line."""
    clean = printable(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    clean = _MARKDOWN.sub(r"\\\1", clean)
    for mark, entity in _LINKS.items():  # else a bare address becomes a link
        clean = clean.replace(mark, entity)
    return clean


def format_digest(text: str) -> str:
    """The start of a fingerprint, as code: a code span knows no escapes, so only what a digest is made of may enter."""
    return f"`{re.sub(r'[^0-9a-zA-Z]', '', text)[:16]}`"


def format_section(title: str, lines: Sequence[str]) -> str:
    """A heading and a list under it; nothing where nothing is known."""
    return "\n".join([f"## {title}", "", *(f"- {line}" for line in lines)]) if lines else ""

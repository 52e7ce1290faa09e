"""Messages use standard terms: home-made words do not come back into the texts that the code prints."""

import ast
import re
from pathlib import Path

import pytest

COMPRESS = Path(__file__).parents[1] / "compress"
AREAS = ("tracking", "stages", "experiments")
"""Folders of `compress` whose messages are held to the list."""
STILL_TO_ADD = ("the other folders of compress", "click help", "README.md and docs", "recipes")
FORBIDDEN = re.compile(
    r"\b(a coin|no contest|thin matrices|is born|are refused|hidden pieces|stage before is|answers alike|were asked for"
    r"|cannot stay|would stay|what it was made of|than there is|in place of|asked twice|is no number|leave it out, "
    r"or)\b"
)


@pytest.mark.parametrize("area", AREAS)
def test_error_messages_use_standard_terms(area: str) -> None:
    found = []
    for path in sorted((COMPRESS / area).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", None) == "UserError":
                texts = [n.value for n in ast.walk(call) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                found += [f"{path}:{call.lineno}: {text}" for text in texts if FORBIDDEN.search(text)]
    assert not found, "\n".join(found)

"""Whose answers a teacher cache holds, and to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.encoder.infer.prepare import Precision
from compress.errors import UserError

_MADE_WITH = {
    "teacher": "with another teacher",
    "tokenizer": "with another tokenizer",
    "max_length": "for texts of another maximal length",
    "data": "for other data",
    "precision": "in another precision",
}


@dataclass(frozen=True)
class Identity:
    """Whose answers, to what. teacher, tokenizer, data: sha256.  max_length: pieces of a text.  precision: of the
    teacher's arithmetic."""

    teacher: str
    tokenizer: str
    max_length: int
    data: str
    precision: Precision

    def check(self, found: Mapping[str, Any], where: Path) -> None:
        """Raise UserError naming the first thing in which the cache at `where` differs, and both its values."""
        for name, told in _MADE_WITH.items():
            ours, theirs = getattr(self, name), found.get(name)
            if ours == theirs or (name == "precision" and theirs == "fp32"):  # exact answers serve coarser arithmetic
                continue
            shown = [str(value)[:16] for value in (theirs, ours)]
            raise UserError(
                f"the teacher cache was built {told}",
                where=str(where),
                why=f"its {name.replace('_', ' ')} is {shown[0]}, this run's is {shown[1]}",
                do="use another folder, or remove the cache to have it rebuilt",
            )

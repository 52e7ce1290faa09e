"""Write golden.json anew: `python tests/embedded/freeze.py`, after a change of rows and of VERSION."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from compress.data import embedded
from compress.data.embedded import claims, opinions, relations, spans

TABLES = (
    (opinions, "SIZES"),
    (opinions, "CORPUS_SIZES"),
    (relations, "PAIR_SIZES"),
    (relations, "SIMILARITY_SIZES"),
    (claims, "SIZES"),
    (spans, "TAG_SIZES"),
    (spans, "QA_SIZES"),
)


def tenth(sizes: dict[str, int]) -> dict[str, int]:
    return {split: size // 10 for split, size in sizes.items()}


def digest(splits: object) -> str:
    return hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    for module, name in TABLES:
        setattr(module, name, tenth(getattr(module, name)))
    digests = {name: digest(embedded.generate(name)) for name in embedded.NAMES}
    golden = {"how": "python tests/embedded/freeze.py", "version": embedded.VERSION, "digests": digests}
    (Path(__file__).parent / "golden.json").write_text(json.dumps(golden, indent=2) + "\n")

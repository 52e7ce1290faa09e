"""Write golden.json anew: `python tests/embedded/freeze.py`, after a change of rows and of VERSION."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from compress.data import embedded

sys.path.insert(0, str(Path(__file__).parents[1]))
from small_sets import shrink


def digest(splits: object) -> str:
    return hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    shrink(pytest.MonkeyPatch())
    digests = {name: digest(embedded.generate(name)) for name in embedded.NAMES}
    golden = {"how": "python tests/embedded/freeze.py", "version": embedded.VERSION, "digests": digests}
    (Path(__file__).parent / "golden.json").write_text(json.dumps(golden, indent=2) + "\n")

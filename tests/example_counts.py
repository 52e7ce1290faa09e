"""How many examples and parameters a test tries: all in `.ci/run`, some in the quick run that README names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest


def scaled(count: int) -> int:
    """`count` where COMPRESS_TESTS is "all", else a fifth, but not under 5."""
    return count if os.environ.get("COMPRESS_TESTS") == "all" else max(min(count, 5), count // 5)


def thorough_but(always: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of a test: those of `values` that are not in `always` are marked thorough. A tuple gives several."""
    kept = list(always)
    several = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    assert all(value in [one for one, _ in several] for value in kept)
    return [pytest.param(*parts, marks=() if value in kept else pytest.mark.thorough) for value, parts in several]

"""How many examples a property test tries: all in `.ci/run`, a fifth in the quick run that README names."""

from __future__ import annotations

import os


def scaled(count: int) -> int:
    """`count` where COMPRESS_TESTS is "all", else a fifth, but not under 5."""
    return count if os.environ.get("COMPRESS_TESTS") == "all" else max(min(count, 5), count // 5)

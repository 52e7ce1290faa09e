"""The generated data sets at a tenth of their size: whole ones take seconds a process, and tests read few rows."""

from __future__ import annotations

import pytest

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


def shrink(patch: pytest.MonkeyPatch) -> None:
    """All sets, until `patch` is undone."""
    for module, name in TABLES:
        patch.setattr(module, name, {split: size // 10 for split, size in getattr(module, name).items()})

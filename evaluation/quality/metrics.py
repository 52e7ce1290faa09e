"""Metrics of confusion tables by name. One is a module here with `NAME` and `score(tables)`; a new one edits nothing.

A metric that is defined for one number of classes only says so as `CLASSES`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

from numpy.typing import NDArray

Score = Callable[[NDArray], NDArray]


@cache
def table_metrics(classes: int | None = None) -> dict[str, Score]:
    """Every metric of a confusion table by name: those of any table, and those of exactly `classes` classes."""
    found: dict[str, Score] = {}
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"evaluation.quality.{info.name}") if info.name != "metrics" else None
        if module is not None and hasattr(module, "NAME") and getattr(module, "CLASSES", classes) == classes:
            found[module.NAME] = module.score
    return found

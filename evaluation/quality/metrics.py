"""Metrics by name. A metric is a module in this folder with `NAME` and `score(tables)`; a new one edits nothing."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

from numpy.typing import NDArray

Score = Callable[[NDArray], NDArray]


@cache
def table_metrics() -> dict[str, Score]:
    """Every metric of a confusion table, by name."""
    found: dict[str, Score] = {}
    for info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"evaluation.quality.{info.name}") if info.name != "metrics" else None
        if module is not None and hasattr(module, "NAME"):
            found[module.NAME] = module.score
    return found

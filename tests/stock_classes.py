"""The config classes of transformers, of which older versions have fewer."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


def config_class(transformers: ModuleType, classes: str) -> Any:
    """`BertConfig` for the prefix `Bert`; skips the test where this version has no such family."""
    found = getattr(transformers, f"{classes}Config", None)
    if found is None:
        pytest.skip(f"transformers {transformers.__version__} has no {classes}")
    return found

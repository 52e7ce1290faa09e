"""The simulated device itself, and that timed calls are synchronized on it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from processes import FOLDER, run_script

NAMES = re.findall(r"^@check\ndef (\w+)", (FOLDER / "checks.py").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Check → traceback, or None where it holds."""
    return run_script("checks.py")


@pytest.mark.parametrize("name", NAMES)
def test_check(results: dict[str, Any], name: str) -> None:
    assert results[name] is None, results[name]

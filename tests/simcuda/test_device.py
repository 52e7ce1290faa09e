"""The simulated device itself, and that timed calls are synchronized on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import shim

CHECKS = Path(__file__).with_name("checks.py")


@pytest.fixture(scope="module")
def results() -> dict[str, str | None]:
    """Check → traceback, or None where it holds; all in one process, which loads the device before torch."""
    if shim.find_compiler() is None:
        pytest.skip("the simulated CUDA device needs g++")
    root = str(CHECKS.parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(CHECKS)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_some_checks_run(results: dict[str, str | None]) -> None:
    assert len(results) == CHECKS.read_text().count("@check\n") > 0


@pytest.mark.parametrize("name", [line.split()[1].split("(")[0] for line in CHECKS.read_text().splitlines()
                                  if line.startswith("def ") and "record: device.Record" in line])  # fmt: skip
def test_check(results: dict[str, str | None], name: str) -> None:
    assert results[name] is None, results[name]

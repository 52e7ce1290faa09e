"""The list of the oldest versions that pyproject.toml allows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_dependency_has_an_oldest_version() -> None:
    done = subprocess.run([sys.executable, ROOT / ".ci/oldest"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split()
    assert all(re.fullmatch(r"[\w.-]+==[\d.]+", line) for line in lines)
    assert {line.partition("==")[0] for line in lines} >= {"torch", "mlflow", "transformers", "ray"}

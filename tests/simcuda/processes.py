"""Runs a script of this folder in a process of its own, which can load the simulated device before torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import shim

FOLDER = Path(__file__).parent


def run_script(name: str, *arguments: str) -> dict[str, Any]:
    """The JSON of the script's last line. Skips the test where the device cannot be built."""
    if shim.find_compiler() is None:
        pytest.skip("the simulated CUDA device needs g++")
    folders = (FOLDER.parents[1], FOLDER.parent, FOLDER.parent / "e2e")
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(FOLDER / name), *arguments]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])

"""A process of this program looks for garbage seldom, and not at its exit."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND = "from compress.cli.main import main; main()"
WORKER = "from compress.run.jobs import child as c; c.run_packed, c._stop_without_parent = len, int; c.main(b'[]')"
SHOW = "import atexit, gc; atexit.register(lambda: print(gc.get_threshold()[0] > 2000, gc.get_freeze_count() > 0)); "


@pytest.mark.parametrize("start", [COMMAND, WORKER], ids=["command", "worker"])
def test_a_process_of_its_own_collects_seldom(start: str) -> None:
    done = subprocess.run([sys.executable, "-c", SHOW + start, "--version"], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "True True", done.stderr


def test_a_command_in_the_process_of_another_program_changes_nothing() -> None:
    start = "from compress.cli.main import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", SHOW + start], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False False", done.stderr

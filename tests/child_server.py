"""A test module as a process of its own, in which everything heavy is imported once; it forks a child per question."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compress.garbage import collect_seldom

TESTS = Path(__file__).parent


def keep_what_is_imported() -> None:
    """Call this when all is imported: what there is lives until the end. Python need not look through it for garbage,
    and a fork that does would copy its pages."""
    collect_seldom()
    gc.collect()
    gc.freeze()


class ChildServer:
    """Runs `script` as a main module that answers each line of JSON on its stdin with one on its stdout."""

    def __init__(self, script: str, **environment: str) -> None:
        path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )

    def answer(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(600)  # far above what ending takes on a busy machine
        self._process.stdout.close()


def answer_in_forks(run: Callable[[Any], int], *descriptors: int) -> None:
    """Each question runs in a child of its own. Answers its exit code, minus the signal that ended it, and what it
    wrote into these descriptors."""
    keep_what_is_imported()
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
            child = os.fork()
            if child == 0:
                for descriptor in descriptors:
                    os.dup2(said.fileno(), descriptor)
                os._exit(run(json.loads(line)))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            print(json.dumps([code, said.read()]), flush=True)

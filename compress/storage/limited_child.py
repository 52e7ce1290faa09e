"""A child process that reads what may be hostile: with limits on memory and processor time, and without the network.

An `except` stops neither an abort of native code nor one that takes all memory. So such code runs in a process of its
own, which these limits end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from compress.errors import printable

FAILED, NO_LIBRARY = 9, 10  # exit codes of a script: what it read is bad; a library is missing
_BEGIN = """
import json, os, resource, sys
given = json.load(sys.stdin)
limits = given["limits"]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (limits["seconds"], limits["seconds"] + 1))
if limits["written"] is not None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits["written"], limits["written"]))


def limit_memory(more=0):
    # more: beside what the process takes already
    if limits["memory"] is None:
        return
    try:
        with open("/proc/self/statm") as file:
            begun = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") if more else 0
    except OSError:
        begun = 0 if not more else None
    if begun is None:
        return  # macOS knows no such file, and has no such limit
    try:
        resource.setrlimit(resource.RLIMIT_AS, (begun + limits["memory"], begun + limits["memory"]))
    except (OSError, ValueError):
        pass


def refuse(event, arguments):
    # a hook cannot be taken away again
    name = event.partition(".")[0]
    if name in ("socket", "subprocess", "webbrowser", "ftplib", "smtplib", "urllib", "http", "ctypes") or event in (
        "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.kill", "os.remove",
        "os.rename", "os.rmdir", "os.symlink", "os.link", "shutil.rmtree", "pty.spawn",
    ):
        raise PermissionError("not allowed here: " + event)
"""


@dataclass(frozen=True)
class Done:
    """How a child ended. code: its exit code, negative: the signal; None: no result in time.  said: its first line."""

    code: int | None
    said: str
    lines: tuple[str, ...]


def run(
    script: str, given: dict[str, Any], *, seconds: int, memory: int | None, wait: float, written: int | None = 0
) -> Done:  # fmt: skip
    """Run a Python script with `given` as its variable `given`.

    The script calls `limit_memory()`, or `limit_memory(1)` where the limit counts from what its imports took, and
    `sys.addaudithook(refuse)`, after which it reaches no network and no other process, before it reads anything.
    seconds: of processor time.  memory: bytes of address space.  wait: seconds until a child that does nothing is
    ended.  written: largest file in bytes, None: no limit.
    """
    limits = {"seconds": seconds, "memory": memory, "written": written}
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _BEGIN + script], input=json.dumps({**given, "limits": limits}).encode(),
            capture_output=True, timeout=wait, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Done(None, "", ())
    lines = tuple(done.stdout.decode("utf-8", "replace").splitlines())
    return Done(done.returncode, printable(lines[0], 160) if lines else "", lines)

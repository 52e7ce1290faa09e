"""What `torchrun --max-restarts` starts again: crashes and lost workers, but no errors of the input.

torchrun starts all processes again whatever ended one of them, and gives each attempt of a process a file for its
error. From the file of the attempt before, a process learns that it would fail again; it then ends at once.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from compress.errors import ExitCode, UserError

_FILE, _COUNT = "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT"


def record_end(code: object, line: str = "") -> None:
    """Note how this attempt ended, if that was an error of the input. line: of the error; torchrun shows it too."""
    path = os.environ.get(_FILE)
    if code == ExitCode.INPUT and path and Path(path).parent.is_dir():
        from compress.storage import atomic

        with contextlib.suppress(UserError, OSError):  # without the note, it is tried again
            atomic.write_json(path, {"message": line, "timestamp": str(int(time.time())), "code": int(ExitCode.INPUT)})


def fails_again() -> bool:
    """Whether the attempt before this one ended with an error of the input. Notes the same of this attempt."""
    path, count = os.environ.get(_FILE), os.environ.get(_COUNT, "0")
    if not path or not count.isdigit() or count == "0":
        return False
    here = Path(path)  # …/attempt_<count>/<local rank>/error.json
    before = here.parents[1].with_name(f"attempt_{int(count) - 1}") / here.parent.name / here.name
    if not before.is_file():
        return False
    from compress.storage import safe

    try:
        said = safe.read_json(before, 1 << 16)
    except UserError:
        return False
    if said.get("code") != ExitCode.INPUT:
        return False
    record_end(ExitCode.INPUT, str(said.get("message", "")))
    return True

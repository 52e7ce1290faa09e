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
_ATTEMPT = "attempt_{}"


def record_end(code: object, line: str = "") -> None:
    """Note how this attempt ended, if that was an error of the input. line: of the error; torchrun shows it too."""
    path = _find_file()
    if code == ExitCode.INPUT and path is not None and path.parent.is_dir():
        from compress.storage import atomic

        with contextlib.suppress(UserError, OSError):  # without the note, it is tried again
            atomic.write_json(path, {"message": line, "timestamp": str(int(time.time())), "code": int(ExitCode.INPUT)})


def fails_again() -> bool:
    """Whether the attempt before this one ended with an error of the input. Notes the same of this attempt."""
    here = _find_file()
    if here is None:
        return False
    count = int(os.environ[_COUNT])
    before = here.parents[1].with_name(_ATTEMPT.format(count - 1)) / here.parent.name / here.name
    if count == 0 or not before.is_file():
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


def _find_file() -> Path | None:
    """The error file of this attempt, …/attempt_<count>/<local rank>/error.json. None where torchrun gave none: what
    other launchers name by the same variable, such as a container's termination log, is not ours to replace."""
    count, here = os.environ.get(_COUNT, ""), Path(os.environ.get(_FILE, ""))
    return here if count.isdecimal() and here.parent.parent.name == _ATTEMPT.format(count) else None

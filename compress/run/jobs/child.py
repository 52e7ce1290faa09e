"""A worker process that does one job: `start` begins it, `run_packed` is what it does.

The job comes as one line on its standard input, which stays open: when it ends, whoever started the process is gone,
and the job stops as after a signal. What it prints goes to a log in the job's folder; an error also goes to a file
there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compress.cpus import THREADS
from compress.errors import ExitCode, Stopped, UserError, find_exhausted, printable
from compress.run.jobs.work import AnyJob, Work

_SCRIPT = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); line = sys.stdin.buffer.readline(); "
    "from compress.run.jobs.child import main; sys.exit(main(line))"
)
"""The line is read before anything else is imported: whoever writes it does not wait. A SIGINT is always obeyed
(`interrupt`): a shell's background commands ignore it, and their processes would inherit that."""

Process = subprocess.Popen[bytes]


def start(packed: Mapping[str, Any], log: Path, *, threads: int, environ: Mapping[str, str] | None = None) -> Process:
    """Begin the job in a process and a process group of its own, so that a Ctrl-C is passed on once.

    threads: that its libraries start.  environ: more variables.
    """
    from compress.storage.disk import open_log

    variables = {**os.environ, **dict.fromkeys(THREADS, str(threads)), **(environ or {}), "PYTHONUNBUFFERED": "1"}
    with open_log(log) as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SCRIPT], stdin=subprocess.PIPE, stdout=out, stderr=out, env=variables,
            start_new_session=True,
        )  # fmt: skip
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code says more
        process.stdin.write(json.dumps(packed).encode() + b"\n")
        process.stdin.flush()
    return process


def interrupt(process: Process, number: signal.Signals = signal.SIGINT) -> None:
    """A signal to the process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
        os.killpg(process.pid, number)


def explain_end(
    code: int, folder: Path, log: Path, less_memory: str, *, by_kernel: bool = False
) -> UserError | Stopped | None:
    """How a job ended, from its exit code (minus the signal that ended it) and what it left; None: well. less_memory:
    as of `Work`.  by_kernel: whether the kernel has killed a process for memory meanwhile."""
    from compress.run.jobs.job import read_failure

    if code == ExitCode.OK:
        return None
    if code == ExitCode.STOPPED:
        return Stopped("stopped by a signal")
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        what = "killed (SIGKILL), as the system does when memory runs out"
        if by_kernel:
            what = "killed by the kernel: this machine, or the limit of its container, ran out of memory"
        return UserError(what, do=less_memory, code=ExitCode.RESOURCES)
    found = read_failure(folder)
    if found is not None:
        return found
    how = f"ended by signal {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return UserError(how, do=f"see {log}", code=ExitCode.BUG)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


# --- inside the process -----------------------------------------------------------------------------------------


def main(line: bytes) -> int:
    """Run the job of a line; returns the exit code."""
    from compress.garbage import collect_seldom
    from compress.import_paths import prefer_installed
    from compress.storage.signals import watch

    collect_seldom()
    prefer_installed()
    watch()
    threading.Thread(target=_stop_without_parent, name="parent", daemon=True).start()
    return run_packed(json.loads(line))


def run_packed(packed: Mapping[str, Any]) -> int:
    """Do the job; returns the exit code. An error is printed, and left in the job's folder."""
    from compress.console import Console
    from compress.run.jobs.job import write_failure
    from compress.storage.sent import use_copies
    from compress.tracking.names import redact
    from compress.tracking.outages import reported_once

    sys.argv = list(packed["argv"])
    console = Console()
    console.listen()
    folder = Path(packed["job"]["folder"])
    use_copies(packed.get("copies", {}))
    try:
        job, shared = _unpack(packed)
        _use_threads(shared.options.threads)
        with reported_once():
            shared.run(job, console)
    except Stopped as stopped:
        print(printable(stopped.reason), file=sys.stderr, flush=True)
        return ExitCode.STOPPED
    except KeyboardInterrupt:
        return ExitCode.STOPPED
    except BaseException as error:
        found = _as_user_error(error)
        print(redact(f"error: {found.line()}"), file=sys.stderr, flush=True)
        write_failure(folder, _redacted(found, redact))
        return found.code
    return ExitCode.OK


def _unpack(packed: Mapping[str, Any]) -> tuple[AnyJob, Work]:
    if packed["kind"] == "rows":
        from compress.run.jobs.row_work import unpack_rows

        return unpack_rows(packed)
    if packed["kind"] == "stage":
        from compress.run.jobs.stage_work import unpack_stage

        return unpack_stage(packed)
    from compress.run.jobs.job import unpack

    return unpack(packed)


def _use_threads(threads: int | str | None) -> None:
    import torch

    if isinstance(threads, int):
        torch.set_num_threads(threads)


def _as_user_error(error: BaseException) -> UserError:
    if isinstance(error, UserError):
        return error
    traceback.print_exception(error)
    what = f"internal error: {type(error).__name__}: {error}"
    return find_exhausted(error) or UserError(printable(what, 300), do="please report it", code=ExitCode.BUG)


def _redacted(error: UserError, redact: Any) -> UserError:
    said = [None if one is None else redact(one) for one in (error.what, error.where, error.why, error.do)]
    return UserError(said[0] or "", where=said[1], why=said[2], do=said[3], code=error.code)


def _stop_without_parent(descriptor: int = 0) -> None:
    """Ask this process to stop when its standard input ends."""
    while os.read(descriptor, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

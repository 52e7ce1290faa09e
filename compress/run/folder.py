"""The folder of a run: its location, its record and status, and the command that resumes it.

runs/<recipe>/   compress-run.json  recipe.yaml  stages/<n>-<kind>/  student/ or model/  tracking/
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from compress.contracts import RunOptions
from compress.errors import ExitCode, Stopped, UserError, list_some, suggest
from compress.recipe import Recipe
from compress.run.changes import list_changes
from compress.storage import atomic, lock, safe, temporary
from compress.storage.disk import find_free_folder, make_new_folder, number_folders, take_free_folder
from compress.storage.signals import continued_by
from compress.tracking import require_in_place, resolve_store
from compress.tracking.names import redact, redact_address
from compress.tracking.store import VARIABLE
from compress.training.ranks import ranks

RUNS = Path("runs")
RECORD = "compress-run.json"
JOB_LOG, FAILURE = "job.log", "failure.json"
"""What a worker process prints, and its error: in the folder of a run that it makes."""
ADDRESS_FLAG = "--tracking-uri"
VERSION = 1


@dataclass(frozen=True)
class Request:
    """What was asked for: only an equal request goes on with a run.

    verb: the one kind of stage that is run, None for all.  inputs: flag → folder, or what else was said there, beside
    what the recipe names.  begin: the stage from which on all are made anew, None where nobody asked.
    """

    recipe: Recipe
    verb: str | None = None
    inputs: Mapping[str, Path | str] = field(default_factory=dict)
    begin: int | None = None

    def digest(self) -> str:
        """sha256 of everything in it that can change a result."""
        inputs = {name: str(path) for name, path in sorted(self.inputs.items())}
        asked = [self.recipe.hash(), self.verb, inputs] + ([] if self.begin is None else [self.begin])
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


@dataclass(frozen=True)
class RunFolder:
    """A claimed folder. new: nothing was done in it before.  made: for this run, as the next free one."""

    path: Path
    request: Request
    new: bool
    made: bool = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A folder that was made for this run, and still holds nothing at the end, is removed, and so is its parent
        where nothing is left in it."""
        try:
            yield
        finally:
            if self.made:
                with contextlib.suppress(OSError):  # something lies there
                    self.path.rmdir()
                    self.path.parent.rmdir()

    def begin(self, read: Mapping[str, str]) -> None:
        """Check, once the folder is locked, that the run which was claimed is still the one that is there.

        read: what the run reads, data or model → fingerprint. Raises FolderInUseError (REFUSED) when another process
        took the folder meanwhile, UserError (REFUSED) when something that the run has read before is not the same any
        more.
        """
        if not _is_ours(self.path):
            return
        if self.new:
            what = "another run has started in this folder"
            raise lock.FolderInUseError(what, where=str(self.path), code=ExitCode.REFUSED)
        before = read_record(self.path).get("read") or {}
        changed = [name for name in before if before[name] != read.get(name)]
        if changed:
            raise UserError(
                f"the run cannot be resumed: its {' and '.join(changed)} changed since it started",
                where=str(self.path),
                do="restore the original, or start a new run in another folder",
                code=ExitCode.REFUSED,
            )

    def record(self, status: str, read: Mapping[str, str], tracked: str) -> None:
        """Write down what runs here, on what, how far it came, and in which store it is recorded."""
        content = {
            "version": VERSION,
            "recipe": self.request.recipe.name,
            "request_sha256": self.request.digest(),
            "command": command_line(),
            "status": status,
            "read": dict(read),
            "tracked": tracked,
        }
        atomic.write_json(self.path / RECORD, content)


def claim(request: Request, options: RunOptions, interrupted_teacher: Callable[[], bool] = lambda: False) -> RunFolder:
    """The folder that this run works in: `--output`, else runs/<recipe>, or the next free runs/<recipe>-2, which is
    made at once, so that no other command takes it. Work in it inside `RunFolder.held`.

    With --resume and no --output: the newest unfinished run of the request. interrupted_teacher: whether the run was
    interrupted while its teacher was trained, before it had a folder of its own; it then takes the next free one.
    Raises UserError (REFUSED) when the folder is not ours, is in use, holds a run that may not be continued unasked, or
    another one than was asked for, and where it cannot be written; UserError for a store that was moved without its
    artifact paths.
    """
    require_in_place(resolve_store(options.tracking_uri))
    claimed = _claim(request, options, interrupted_teacher)
    if not claimed.new:
        _require_address(claimed.path, options)
    try:
        atomic.require_writable(claimed.path / RECORD if claimed.path.is_dir() else claimed.path)
    except UserError:
        with claimed.held():
            raise
    return claimed


def note_new_run(options: RunOptions, say: Callable[[str], None]) -> None:
    """Where --resume names a folder that is not there, say that it starts there: jobs that may be stopped at any
    time are started with --resume from the beginning, but it may also be a wrong name."""
    output = options.output
    if not options.resume or output is None or output.exists():
        return
    hint = suggest(output.name, sorted(path.name for path in output.parent.glob("*") if _is_ours(path)))
    say(f"nothing to resume in {output}: starting from the beginning" + ("" if hint is None else f"; {hint}"))


def _claim(request: Request, options: RunOptions, interrupted_teacher: Callable[[], bool]) -> RunFolder:
    name = request.recipe.name
    if options.output is not None:
        return _claim_named(Path(options.output), request, options.resume)
    if options.resume:
        open_runs = [p for p in _numbered(name) if p.exists() and is_unfinished(p)]
        same = [p for p in open_runs if read_record(p).get("request_sha256") == request.digest()]
        if not same and interrupted_teacher():
            return _take_free(request)
        if not open_runs:
            raise _nothing_to_resume(name)
        return _claim_named((same or open_runs)[-1], request, True)
    return _take_free(request)


def _take_free(request: Request) -> RunFolder:
    return RunFolder(take_free_folder(RUNS / request.recipe.name), request, True, made=True)


class Found(Enum):
    """What a folder above those of several runs holds of the ones that are asked for."""

    UNFINISHED = auto()
    FINISHED = auto()
    NONE_YET = auto()  # or runs in their places that were asked for otherwise, which are refused
    FOREIGN = auto()


def choose_base(name: str, options: RunOptions, look: Callable[[Path], Found]) -> Path:
    """The folder above those of several runs: `--output`, else runs/<name>, or the next free runs/<name>-2.

    With --resume and no --output: the newest with unfinished runs, else with finished ones, else where none began.
    Raises UserError where there is none. look: what a folder holds.
    """
    if options.output is not None:
        return options.output
    if not options.resume:
        return find_free_folder(RUNS / name)
    newest: dict[Found, Path] = {}
    for folder in _numbered(name):
        if folder.is_dir() and not _is_ours(folder):
            newest[look(folder)] = folder
    newest.pop(Found.FOREIGN, None)
    if not newest:
        raise _nothing_to_resume(name)
    return newest[min(newest, key=list(Found).index)]


def make_base(base: Path, options: RunOptions) -> bool:
    """Make a folder that `choose_base` found free. False where another command has taken it meanwhile."""
    return options.output is not None or options.resume or make_new_folder(base)


def _nothing_to_resume(name: str) -> UserError:
    return UserError(
        f"there is no unfinished run of {name} to resume",
        where=f"{RUNS}/{name}",
        do="name its folder with --output, or remove --resume",
    )


def _require_address(folder: Path, options: RunOptions) -> None:
    """UserError when the run was recorded under an address with a password, which nobody kept, and another is named."""
    tracked = str(read_record(folder).get("tracked") or "")
    if "***" in tracked and not tracked.startswith(f"{resolve_store(options.tracking_uri).shown} "):
        raise UserError(
            f"the run is recorded in {tracked.partition(' ')[0]}, whose password is not stored",
            where=str(folder),
            do=f"set {VARIABLE} to the full address",
        )


def new_output(options: RunOptions) -> Path:
    """Where a command without a run folder writes: checked before it works, not after. Raises UserError for no
    --output, (refused) for one that is there, and for one that cannot be written."""
    if options.output is None:
        raise UserError("an output folder is required", where="--output", do="add --output FOLDER")
    if options.output.exists():
        raise UserError("exists already", where=str(options.output), do="name another folder", code=ExitCode.REFUSED)
    atomic.require_writable(options.output)
    return options.output


def is_finished(folder: Path) -> bool:
    """Whether a run of ours came to its end there."""
    return _is_ours(folder) and read_record(folder).get("status") == "finished"


def is_unfinished(folder: Path) -> bool:
    """Whether a run of ours began there and did not come to its end."""
    return _is_ours(folder) and not is_finished(folder)


def read_record(folder: Path) -> dict[str, Any]:
    """What the record of a run of ours says."""
    return safe.read_json(folder / RECORD, 1 << 20)


def _numbered(name: str) -> Iterator[Path]:
    yield RUNS / name
    yield from takewhile(Path.exists, islice(number_folders(RUNS / name), 1, None))


def _is_ours(path: Path) -> bool:
    return (path / RECORD).is_file()


def _claim_named(path: Path, request: Request, resume: bool) -> RunFolder:
    where = f"--output {path}"
    if path.exists() and not path.is_dir():
        raise UserError("the output is a file", where=where, do="name a folder", code=ExitCode.REFUSED)
    if not path.exists():
        return RunFolder(path, request, True)
    if (holder := lock.status(path)).state == "running":
        raise lock.make_in_use_error(where, holder.holder)
    if not _is_ours(path):
        if is_unbegun(path):
            return RunFolder(path, request, True)
        raise UserError(
            "the output folder exists and contains no run of compress", where=where, do="name a new folder",
            code=ExitCode.REFUSED,
        )  # fmt: skip
    record = read_record(path)
    if not resume:
        status = record.get("status")
        raise UserError(
            "the output folder already contains a run",
            where=where,
            why=f"recipe {record.get('recipe')}, {'its process has died' if status == 'running' else status}",
            do="use --resume to continue it, or name a new folder",
            code=ExitCode.REFUSED,
        )
    if record.get("request_sha256") != request.digest():
        changes = list_changes(path, request.recipe)
        changed = f"; changed: {list_some(changes, 3)}" if changes else ""
        raise UserError(
            "the run in this folder was started with another recipe or other options",
            where=where,
            why=f"its command was: {record.get('command')}{changed}",
            do="use that command with --resume, or name a new folder",
            code=ExitCode.REFUSED,
        )
    return RunFolder(path, request, False)


_UNBEGUN = (lock.LOCK, lock.RECORD, JOB_LOG, FAILURE)
"""What lies in the folder of a run that ended before it had written its record."""


def is_unbegun(folder: Path) -> bool:
    """Whether nothing lies in the folder but what a run leaves that ended before it had written its record."""
    return all(entry.name in _UNBEGUN or temporary.parse(entry.name) for entry in folder.iterdir())


def command_line() -> str:
    """This process's command as a person types it, without secrets."""
    return redact(shlex.join([*ranks().launcher, *sys.argv[1:]]))


@contextlib.contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """What stops inside is continued by the command for `folder`, which a Stopped from here names.

    Around runs that have folders of their own, as seeds: the command continues them all, whatever theirs would be.
    """
    command = resume_command(folder)
    with continued_by(command):
        try:
            yield
        except Stopped as stopped:
            raise Stopped(stopped.reason, command, str(folder)) from None


def resume_command(folder: Path) -> str:
    """The command that continues the run in `folder`; an address with a password is left to the environment."""
    words = [w for w in sys.argv[1:] if w != "--resume"]
    if "--output" not in words and not any(w.startswith("--output=") for w in words):
        words += ["--output", str(folder)]
    words, secret = _without_secret_address(words)
    command = shlex.join([*ranks().launcher, *words, "--resume"])
    return redact(f"{VARIABLE}=ADDRESS {command}" if secret else command)


def _without_secret_address(words: Sequence[str]) -> tuple[list[str], bool]:
    """The words but for a --tracking-uri that holds a secret, and whether there was one."""
    kept: list[str] = []
    secret, rest = False, iter(words)
    for word in rest:
        flag, _, value = word.partition("=")
        if flag != ADDRESS_FLAG:
            kept.append(word)
            continue
        given = [word] if value else [word, *islice(rest, 1)]
        if redact_address(value or given[-1]) == (value or given[-1]):
            kept += given
        else:
            secret = True
    return kept, secret

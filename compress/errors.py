"""What the workbench says when it cannot go on, and the exit code that goes with it.

Every expected failure is a `UserError`: one line that says what is wrong, where, why, and what to do next.
The command line prints that line and leaves with the error's exit code; a traceback appears only for bugs.
"""

from __future__ import annotations

import difflib
import errno
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from pathlib import Path
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of every command; one that a second signal ended exits with 128 plus that signal's number."""

    OK = 0
    INPUT = 2  # a flag, a recipe, a file or a model folder is wrong
    REFUSED = 3  # locked, exists already, a bound cannot be met
    DATA = 4  # numbers went bad: non-finite loss, no valid checkpoint
    RESOURCES = 5  # disk, memory, threads, processes or open files
    ENVIRONMENT = 6  # a missing dependency or device
    BUG = 70
    STOPPED = 75  # stopped by a signal, resumable


class UserError(Exception):
    """An expected failure, told in one line.

    what: what is wrong, as a short clause.   where: file:line:column, key path, row, flag.
    why: found against allowed.   do: the next action, often the nearest right thing.
    result: of a Python call whose results were there before it failed, what it would have returned; else None.
    """

    result: Any = None

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        why: str | None = None,
        do: str | None = None,
        code: ExitCode = ExitCode.INPUT,
    ) -> None:
        self.what, self.where, self.why, self.do, self.code = what, where, why, do, code
        super().__init__(self.line())

    def line(self) -> str:
        """`where: what: why; do`, on one line, without control characters."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.why:
            text += f": {self.why}"
        if self.do:
            text += f"; {self.do}"
        return printable(text)


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """A signal asked us to stop; the state was saved and `resume` is the command that continues it. folder: of the run
    that the same call from Python continues with `output=folder, resume=True`."""

    def __init__(self, reason: str, resume: str | None = None, folder: str | None = None) -> None:
        self.reason, self.resume, self.folder = reason, resume, folder
        super().__init__(reason)


_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "cannot allocate memory",
    "bad_alloc",
    "failed to allocate memory",
    "unable to allocate",
    "failed to map segment",  # of a library that is loaded
    "could not create a primitive",  # oneDNN, of its code
)
_NO_THREADS = (
    "can't start new thread",
    "failed to spawn thread",
    "threadpoolbuilderror",
    "pthread_create",
    "thread creation failed",
    "thread constructor failed",
    "resource temporarily unavailable",
)


def find_exhausted(error: BaseException) -> UserError | None:
    """The error (RESOURCES) about what the machine has run out of: memory, threads and processes, or open files.

    Looks at `error` and at what it was raised from, since readers retell an error of the system as one of their file.
    None where nothing was exhausted.
    """
    seen: BaseException | None = error
    while seen is not None:
        if (made := _exhausted(seen)) is not None:
            return made
        seen = seen.__cause__
    return None


def _exhausted(error: BaseException) -> UserError | None:
    if isinstance(error, UserError):
        return None
    number = error.errno if isinstance(error, OSError) else None
    said = "" if number is not None else str(error)[:2000].lower()
    if is_out_of_memory(error):
        do = "reduce the memory use, e.g. --set stages.*.training.max_tokens=2048 or --limit ROWS, or close other"
        return UserError("out of memory", do=f"{do} programs", code=ExitCode.RESOURCES)
    if (number == errno.EAGAIN and not _is_full_pipe(error)) or any(sign in said for sign in _NO_THREADS):
        return UserError(
            "no more threads or processes can be started",
            why="a limit of the system or the container is reached",
            do="use --threads 1 with OMP_NUM_THREADS=1, or raise the limit (`ulimit -u`, or that of the container)",
            code=ExitCode.RESOURCES,
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return UserError(
            "no more files can be opened",
            why="a limit of the system is reached",
            do="raise the limit (`ulimit -n 4096`), or close other programs",
            code=ExitCode.RESOURCES,
        )
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory could not be allocated: each library has an error of its own for it, of torch a plain one."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    said = str(error)[:2000].lower()
    return isinstance(error, MemoryError) or any(sign in said for sign in _NO_MEMORY)


def _is_full_pipe(error: BaseException) -> bool:
    return "without blocking" in str(error)


def require_short_path(path: Path, where: str) -> None:
    """Raise UserError for a path that is longer than the file system takes."""
    try:
        path.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise long_path_error(str(path), where) from error


def long_path_error(path: str, where: str | None = None) -> UserError:
    """What is said of a path that no file system takes."""
    name = max(path.split("/"), key=len)
    why = f"{len(path.encode(errors='replace')):,} bytes" + (
        f", one name of {len(name.encode(errors='replace')):,}" if path else ""
    )
    do = "use at most 255 bytes for each name and 4,095 for the whole path"
    return UserError("the path is too long", where=where or printable(path, 60) or None, why=why, do=do)


def printable(text: str, limit: int | None = None) -> str:
    """`text` on one line, control characters escaped (foreign text must not drive the terminal), cut to `limit`.

    limit: columns of the terminal. An ideographic space becomes two spaces, which are as wide.
    """
    # A text of 50 MB is not looked through for the few characters that are shown.
    most = len(text) if limit is None else SHOWN * limit
    text, cut = text[:most], len(text) > most
    clean = text
    if not text.isprintable():
        clean = "".join(c if c.isprintable() else _ESCAPES.get(c) or _escaped(c) for c in text)
    if limit is None or 2 * len(clean) <= limit:
        return clean
    if clean.isascii():  # a column each
        return clean if len(clean) <= limit else clean[: limit - 1] + "…"
    ends = list(accumulate(map(_columns, clean)))
    if not ends or ends[-1] <= limit:
        return f"{clean}…" if cut else clean
    return clean[: bisect_right(ends, limit - 1)] + "…"


def without_folders(name: str, *, parts: int = 1) -> str:
    """A data set's name as others may read it: of an absolute path, or one that begins with `..`, its last parts, since
    models and pages are published and the folders of the machine that they were made on concern nobody; every other
    name whole."""
    path = Path(name)
    return "/".join(path.parts[-parts:]) if path.is_absolute() or path.parts[:1] == ("..",) else name


def columns(text: str) -> int:
    """Columns of a terminal that `text` fills: East Asian wide characters take two, combining marks none."""
    return sum(map(_columns, text))


def _columns(c: str) -> int:
    if c.isascii():
        return 1
    return 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1


SHOWN = 64
"""Characters of a text that are looked at for each column that is shown: combining marks take none."""
_SHOWN_NAMES = 100  # of those that a message lists
_ESCAPES = {"\u3000": "  "}


def _escaped(c: str) -> str:
    return c.encode("unicode_escape").decode("ascii")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `word` was most likely meant to be, or None."""
    known = list(known)
    folded = {k.lower(): k for k in known}
    hit = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return folded[hit[0]] if hit else None


def suggest(word: str, known: Iterable[str]) -> str | None:
    """`did you mean 'x'?` when something is near."""
    hit = nearest(word, known)
    return None if hit is None else f"did you mean '{hit}'?"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` when something is near, else the list of what is known."""
    known = sorted(known)
    if (found := suggest(word, known)) is not None:
        return found
    if not known:
        return "there are none"
    more = f", … ({len(known):,} in all)" if len(known) > _SHOWN_NAMES else ""
    return "known: " + ", ".join(known[:_SHOWN_NAMES]) + more


def format_count(count: int, noun: str = "row") -> str:
    """`1 row`, `1,234 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def list_some(names: Sequence[Any], most: int, separator: str = ", ") -> str:
    """The first `most` of them, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(map(str, names[:most])) + more


def describe(value: Any) -> str:
    """A value that was found in a recipe or a file, for messages."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text '{printable(value, 60)}'"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return str(value)

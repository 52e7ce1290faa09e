"""What a name of data means, before anything is read: an embedded set, the hub, or a path. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from compress.data.reading.remote import SCHEME, RemotePath
from compress.errors import UserError, nearest, printable
from compress.storage.sent import find_copy

FOR_TEXT = "commands that read plain text take it as --unlabelled or --corpus"
"""Said where rows with labels are needed, and plain text is given."""


def require_there(name: str) -> None:
    """Raise UserError, with the nearest right name, where `name` is a path or an address and nothing is there."""
    if name.startswith(SCHEME):
        RemotePath.parse(name).require_there()
    elif not is_elsewhere(name) and not (path := path_of(name)).exists():
        raise make_unknown_error(name, path)


def is_elsewhere(name: str) -> bool:
    """Whether `name` is no path: on the hub, or generated. (A folder of that name can be given as ./name.)"""
    return name.startswith(("hf:", "embedded:")) or name in list_embedded_names()


def path_of(name: str) -> Path:
    """`name` as a path, `~` resolved, or the copy that was sent to this machine. Raises UserError for what no path can
    be."""
    if not name.strip():
        raise UserError("no data given", do="give a file, a folder, hf:name or an embedded set")
    if name.startswith(SCHEME):
        raise UserError(
            "this file cannot be read from an object store", where=printable(name, 80), do="copy it to this machine"
        )  # fmt: skip
    try:
        path = Path(name).expanduser()
        path.exists()
        if "\x00" in name:
            raise ValueError("it contains a NUL byte")
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(f"'{printable(name, 80)}' is not a path", why=printable(why, 120)) from error
    return find_copy(path)


def list_embedded_names() -> tuple[str, ...]:
    """The data sets that are generated on the spot."""
    from compress.data import embedded

    return tuple(embedded.NAMES)


def make_unknown_error(name: str, path: Path) -> UserError:
    """The error for a name that is neither an embedded set nor a path, with the nearest right one."""
    near = nearest(name, list_embedded_names())
    if near is not None:
        return UserError(f"no data set '{printable(name, 80)}'", do=f"did you mean the embedded set '{near}'?")
    error = make_missing_error(path)
    if error.do is not None and error.do.endswith("?"):
        return error  # a near name is the likeliest
    if "/" not in name or (name.count("/") == 1 and not path.parent.is_dir()):
        hint = f"or hf:{name} for the hub" if "/" in name else "or an embedded set: " + ", ".join(list_embedded_names())
        error = UserError(error.what, why=error.why, do=f"{error.do}, {hint}" if error.do else hint)
    return error


def make_missing_error(path: Path) -> UserError:
    """The error for a path that is not there: where we looked, and the nearest name that is."""
    parent = path.parent
    where = f"looked in {parent.resolve()}"
    if not parent.is_dir():
        return UserError(f"no such file or folder: '{path}'", why=f"{parent.resolve()} does not exist either")
    try:
        names = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
    except OSError:  # a folder that may be entered and not listed: there is nothing to suggest
        return UserError(f"no such file or folder: '{path}'", why=where)
    near = nearest(path.name, names)
    if near is not None:
        do = f"did you mean '{parent / near}'?"
    elif names:
        do = "it contains: " + ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
    else:
        do = "that folder is empty"
    return UserError(f"no such file or folder: '{path}'", why=where, do=do)

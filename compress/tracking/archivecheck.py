"""Checks a whole archive of runs, which anybody may have written, before the first of it goes to a store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

from compress.errors import UserError, printable
from compress.storage import atomic, manifest
from compress.tracking.archiveformat import INDEX, PARENT_TAGS, Index, ModelFile, RunFile, read

DEEPEST = 64  # folders in folders
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class CheckedArchive:
    """order: ids of the runs, those above before those below.  names, experiments: of the runs, by id."""

    index: Index
    order: list[str]
    names: dict[str, str]
    experiments: dict[str, str]


def check_archive(source: Path) -> CheckedArchive:
    """What is in an archive, all of whose files are plain, listed, unchanged, and of the format.

    Raises UserError with the first thing that is wrong, the file, and the key in it.
    """
    if not os.path.lexists(source / INDEX):
        raise UserError("not an archive of runs", where=str(source), why=f"it contains no {INDEX}")
    _require_plain(source)
    reasons = atomic.verify_folder(source)
    if reasons:
        raise UserError("the archive is damaged", where=str(source), why=printable(reasons[0], 200))
    files = atomic.read_manifest(source)
    if others := manifest.find_unlisted(source):
        why = f"its manifest does not list {printable(others[0], 100)}"
        raise UserError("the archive contains files that are not in its manifest", where=str(source), why=why)
    index = read(source / INDEX, Index)
    known: set[str] = set(index.runs)
    names: dict[str, str] = {}
    experiments: dict[str, str] = {}
    parents: dict[str, set[str]] = {}
    models: set[str] = set()
    for identity in index.runs:
        run = read_run(source, identity)
        names[identity], experiments[identity] = run.name, run.experiment
        parents[identity] = {run.tags[tag] for tag in PARENT_TAGS if tag in run.tags} & known
        for model in set(run.models) - models:
            read_model(source, model)
        models |= set(run.models)
    _require_known(source, files, {"runs": known, "models": models})
    if unused := sorted(set(index.experiments) - set(experiments.values())):
        raise UserError(
            "not the format of an archive",
            where=str(source / INDEX),
            why=f"experiments.{printable(unused[0], 100)}: no run is in this experiment",
        )
    return CheckedArchive(index, _parents_first(source, parents), names, experiments)


def read_run(source: Path, identity: str) -> RunFile:
    """What the archive says of a run. UserError where it is not of the format, or of another run."""
    told = read(path := source / "runs" / f"{identity}.json", RunFile)
    _require_id(path, told.id, identity)
    return told


def read_model(source: Path, identity: str) -> ModelFile:
    """The same of a model."""
    told = read(path := source / "models" / f"{identity}.json", ModelFile)
    _require_id(path, told.id, identity)
    return told


def _require_id(path: Path, found: str, identity: str) -> None:
    if found != identity:
        why = f"id: found '{found}', but the name of the file is '{identity}'"
        raise UserError("not the format of an archive", where=str(path), why=why)


def _require_plain(source: Path) -> None:
    """Nothing but folders and plain files with one name each, under names that can be shown."""

    def fail(error: OSError) -> None:
        raise UserError("cannot be read", where=str(error.filename or source), why=error.strerror)

    for root, folders, files in os.walk(source, onerror=fail):
        inside = Path(root).relative_to(source)
        for name in (*folders, *files):
            where = str(source / inside / name)
            if not name.isprintable():
                raise UserError("the archive contains a file with control characters in its name", where=where)
            status = os.lstat(where)
            if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
                what = "the archive contains what is neither a file nor a folder"
                raise UserError(what, where=where, why=f"it is {_KINDS.get(stat.S_IFMT(status.st_mode), 'special')}")
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                what, do = "the archive contains a hard link", "copy the archive without links (cp -r)"
                raise UserError(what, where=where, why=f"the file has {status.st_nlink} names", do=do)
        if folders and len(inside.parts) >= DEEPEST:
            what = "the folders of the archive are nested too deeply"
            raise UserError(what, where=printable(str(source / inside), 200), why=f"at most {DEEPEST} levels")


def _require_known(source: Path, files: Iterable[str], known: Mapping[str, set[str]]) -> None:
    """Each file is the index, or belongs to a run or a model that it leads to."""
    for name in files:
        if name == INDEX:
            continue
        folder, *inner = PurePosixPath(name).parts
        whose = inner[0] if len(inner) > 1 else inner[0].removesuffix(".json") if inner else ""
        if whose not in known.get(folder, ()) or (len(inner) == 1 and not name.endswith(".json")):
            what = f"the archive contains a file that belongs to none of the runs in {INDEX}"
            raise UserError(what, where=str(source / name))


def _parents_first(source: Path, parents: Mapping[str, set[str]]) -> list[str]:
    try:
        return list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        why = " below ".join(printable(str(one), 64) for one in error.args[1][:3])
        raise UserError("runs of the archive are below themselves", where=str(source / "runs"), why=why) from None

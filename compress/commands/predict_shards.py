"""`compress predict --output`: the rows of files are answered in shards, by one process, several, or a cluster.

FOLDER/   plan.json (what was asked, and which rows each shard has)  shards/  workers/ (their logs)
          manifest.json (counts and digests of all shards, when all are there)
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from compress.console import Console
from compress.contracts import RunOptions
from compress.data.reading.remote import Place
from compress.errors import ExitCode, UserError, format_count
from compress.modelfolder.folder import fingerprint
from compress.predict.rows.answers import Answerer, ModelRequest, PredictionAnswerer
from compress.predict.rows.plan import Plan, hash_file, plan_shards
from compress.predict.rows.reading import list_files
from compress.predict.rows.shards import ANSWERS, REJECTED, ShardFolder
from compress.run.folder import is_unbegun, note_new_run, resumable
from compress.run.jobs import RowWork, hold_cluster, make_shards, require_cluster
from compress.run.jobs.row_work import PLAN, PLAN_LIMIT
from compress.storage import atomic, lock, safe
from compress.storage.signals import StopFlag

FORMAT, VERSION = "compress-rows", 1
MANIFEST = "manifest.json"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ShardOptions:
    """shard_rows: rows of a shard.  join: a file for all answers, in order.  bad_rows: a file for the rows that cannot
    be read; None: the first one is an error."""

    shard_rows: int
    join: Path | None = None
    bad_rows: Path | None = None


def predict_shards(request: ModelRequest, place: Place, shards: ShardOptions, options: RunOptions) -> None:
    """Answer all rows of a file or folder into the folder `options.output`; with `options.resume` only the shards that
    are missing or damaged.

    Raises UserError for what cannot be read, and (refused) for a folder in use, one that holds other answers, and files
    that would be replaced; Stopped after a signal.
    """
    assert options.output is not None
    base, console = options.output, Console(quiet=options.quiet, json=options.json)
    _check_places(base, place, shards, options)
    note_new_run(options, console.note)
    with StopFlag() as stop, resumable(base), hold_cluster(options), ExitStack() as stack:
        require_cluster(options)
        answerer = request.open(console)
        if _is_array(shards.join) and not answerer.gives_vectors:
            do = "name a .jsonl file, or add --embeddings"
            raise UserError("the predictions are not vectors", where=f"--join {shards.join}", do=do)
        request = request.settle(answerer)
        asked = _describe(request, answerer, shards)
        plan = _read_plan(base, asked, list_files(place)) if options.resume and base.exists() else None
        if plan is None:
            plan = _make_plan(list_files(place), answerer, shards, console)
        stack.enter_context(lock.run_lock(base))
        atomic.write_json(base / PLAN, {"format": FORMAT, "version": VERSION, "asked": asked, "plan": plan.as_json()})
        console.note(f"{format_count(plan.rows)} in {format_count(len(plan.shards), 'shard')}")
        work = RowWork(base, options, request, plan, shards.bad_rows is not None, answerer)
        work.remove_damaged(console)
        make_shards(work, console, stop)
        manifest = _make_manifest(base, asked, plan)
        _require_wanted_rejects(manifest, shards)
        atomic.write_json(base / MANIFEST, manifest)
        _join(base, plan, shards, manifest["answered"])
        _report(base, manifest, shards, console)


def _check_places(base: Path, place: Place, shards: ShardOptions, options: RunOptions) -> None:
    if str(place) == "-":
        raise UserError("standard input cannot be divided into shards", where="--file -", do="give a file")
    for flag, path in (("--join", shards.join), ("--bad-rows", shards.bad_rows)):
        if path is not None and path.exists() and not options.resume:
            raise UserError(f"{path} exists already", where=flag, do="name another file", code=ExitCode.REFUSED)
    if base.exists() and not base.is_dir():
        raise UserError("the output is a file", where=f"--output {base}", do="name a folder", code=ExitCode.REFUSED)
    if base.exists() and not is_unbegun(base):
        ours = (base / PLAN).is_file()
        if not ours or not options.resume:
            what = "already contains predictions" if ours else "exists and contains no predictions of compress predict"
            do = "use --resume to continue, or name a new folder" if ours else "name a new folder"
            raise UserError(f"the output folder {what}", where=f"--output {base}", do=do, code=ExitCode.REFUSED)
    atomic.require_writable(base, shards.join, shards.bad_rows)


def _describe(request: ModelRequest, answerer: Answerer, shards: ShardOptions) -> dict[str, Any]:
    """Everything that decides the answers, but for the files. Plain data."""
    asked = request.pack()
    asked |= {"model": asked.pop("folder"), "fingerprint": fingerprint(request.folder), "shard_rows": shards.shard_rows}
    if isinstance(answerer, PredictionAnswerer):
        predictor = answerer.predictor
        exported = {file.name: hash_file(file) for file in predictor.files if file.is_file()}
        asked |= {"runtime": predictor.computed_by, "precision": predictor.computed_in, "exported": exported}
    return asked


def _read_plan(base: Path, asked: Mapping[str, Any], files: Sequence[Place]) -> Plan | None:
    """The plan of an earlier command; None where it wrote none. Raises UserError (refused) where it was for other
    answers or files."""
    if not (base / PLAN).exists():
        return None
    content = safe.read_json(base / PLAN, PLAN_LIMIT)
    try:
        before, plan = dict(content["asked"]), Plan.from_json(content["plan"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError("plan.json is damaged", where=str(base), do="name a new folder") from error
    names = {**before, **asked}
    changed = [name for name in names if before.get(name) != asked.get(name) and name != "model"]
    same = [file.path for file in plan.files] == [str(file) for file in files]
    changed += [] if same else ["files"]
    changed += [file.path for file in plan.files if same and not file.is_unchanged()]
    if changed:
        raise UserError(
            "the predictions in this folder cannot be continued", where=f"--output {base}",
            why=f"changed since they were begun: {', '.join(changed[:3])}",
            do="use what was used then, or name a new folder", code=ExitCode.REFUSED,
        )  # fmt: skip
    return plan


def _make_plan(files: Sequence[Place], answerer: Answerer, shards: ShardOptions, console: Console) -> Plan:
    with console.slow_progress("count", None, "rows") as progress:
        lenient = shards.bad_rows is not None
        return plan_shards(files, answerer.columns, shards.shard_rows, lenient=lenient, told=progress.update)


# --- when all shards are there ------------------------------------------------------------------------------------


def _make_manifest(base: Path, asked: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Counts and digests of all shards."""
    rows = []
    for shard in plan.shards:
        folder = ShardFolder.of(base, shard)
        record, files = folder.read_record(), atomic.read_manifest(folder.path)
        counts = {name: record[name] for name in ("first", "rows", "answered", "rejected")}
        answers = {"file": str((folder.path / ANSWERS).relative_to(base)), "bytes": files[ANSWERS].size}
        rows.append({**counts, **answers, "sha256": files[ANSWERS].sha256})
    totals = {name: sum(row[name] for row in rows) for name in ("rows", "answered", "rejected")}
    files = plan.as_json()["files"]
    return {"format": FORMAT, "version": VERSION, **totals, "asked": dict(asked), "files": files, "shards": rows}


def _require_wanted_rejects(manifest: Mapping[str, Any], shards: ShardOptions) -> None:
    if manifest["rejected"] and shards.bad_rows is None:
        count = format_count(manifest["rejected"])
        do = "add --bad-rows FILE, or correct them and name a new folder"
        raise UserError(f"{count} were rejected by the command that is resumed", where="--bad-rows", do=do)


def _join(base: Path, plan: Plan, shards: ShardOptions, answered: int) -> None:
    """Write the files of all answers, and of all rejected rows, in the order of the rows."""
    for target, name in ((shards.join, ANSWERS), (shards.bad_rows, REJECTED)):
        if target is not None:
            parts = [ShardFolder.of(base, shard).path / name for shard in plan.shards]
            there = [part for part in parts if part.exists()]
            if target is shards.join and _is_array(target):
                _join_vectors(target, there, answered)
            else:
                atomic.write_chunks(target, _read_parts(there), sum(part.stat().st_size for part in there))


def _join_vectors(target: Path, parts: Sequence[Path], rows: int) -> None:
    """Write the vectors of all answers as a float32 array of numpy, a row for each."""
    width = len(next(_read_vectors(parts), ()))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
    vectors = (np.asarray(vector, "<f4").tobytes() for vector in _read_vectors(parts))
    atomic.write_chunks(target, chain([header.getvalue()], vectors), header.tell() + 4 * rows * width)


def _read_vectors(parts: Sequence[Path]) -> Iterator[Sequence[float]]:
    for part in parts:
        with open(part, encoding="utf-8") as stream:
            yield from (json.loads(line)["embedding"] for line in stream)


def _is_array(path: Path | None) -> bool:
    return path is not None and path.suffix.lower() == ".npy"


def _read_parts(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        with open(path, "rb") as stream:
            yield from iter(lambda: stream.read(_CHUNK), b"")


def _report(base: Path, manifest: Mapping[str, Any], shards: ShardOptions, console: Console) -> None:
    rejected = f", {format_count(manifest['rejected'])} rejected: {shards.bad_rows}" if manifest["rejected"] else ""
    where = shards.join or base / "shards/*" / ANSWERS
    console.note(f"{format_count(manifest['answered'], 'prediction')}: {where}{rejected}")
    console.document(manifest)

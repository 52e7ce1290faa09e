"""A teacher cache folder: which teacher and data it is for, which shards are missing, and how they are computed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.contracts import Teacher
from compress.data.batches.fixed_rows import FixedRows
from compress.encoder.infer.prepare import Precision
from compress.errors import ExitCode, UserError
from compress.stages.distill.cache import fidelity
from compress.stages.distill.cache.fidelity import Fidelity
from compress.stages.distill.cache.fields import Field
from compress.stages.distill.cache.filling import FILL_TOKENS, Filling, open_fields
from compress.stages.distill.cache.handover import HandOver
from compress.stages.distill.cache.identity import Identity
from compress.stages.distill.cache.shards import Division, Shards
from compress.stages.shared.stage import SharedParts, StageServices
from compress.storage import atomic, safe, temporary
from compress.storage.disk import human_bytes
from compress.storage.lock import file_lock

FORMAT = "teacher-cache-1"
NOTE, LOCK = "cache.json", ".fill.lock"
SHARD_TOKENS = (1 << 12, 1 << 15)
"""Least and most tokens of a shard: it is in memory while it is filled, and lost by a stop."""
SHARDS = 32
"""As many as a cache has between those bounds."""


@dataclass(frozen=True)
class Work:
    """What filling is done with. live: makes the teacher ready, called when there is something to ask.

    kept: the cached teacher.  services: of the stage.
    """

    live: Callable[[], Teacher]
    kept: Teacher
    device: str
    say: Callable[[str], None]
    services: StageServices


class TeacherCache:
    """The folder `path`, made by `fill` if it is not there, for a teacher's answers to `rows`.

    precision: of the arithmetic that they were made by, or will be. Raises UserError for a folder that is something
    else, and for a cache of another teacher or other data, with the thing that differs and both its fingerprints.
    """

    def __init__(self, path: Path, identity: Identity, rows: FixedRows) -> None:
        self.path, self.identity, self.rows = path, identity, rows
        note = self._note()
        self.precision: Precision = note["precision"] if note else identity.precision
        self.division = _divided(rows)
        self.fields: dict[Field, Shards] = {}

    def hold(self, fields: Sequence[Field]) -> Mapping[Field, Shards]:
        """The fields that are to be there, each with its shards, of which some may be missing. Reads every byte of the
        others; raises UserError (data) for one that is damaged or cut."""
        self.fields.update(open_fields(self.path, fields, self.division))
        for shards in self.fields.values():
            shards.verify()
        return self.fields

    @property
    def missing(self) -> dict[int, list[Field]]:
        """Shard → the fields that it lacks."""
        return self._filling.missing

    @property
    def _filling(self) -> Filling:
        return Filling(self.fields, self.division, self.rows)

    def fill(self, work: Work) -> dict[str, float]:
        """Ask the live teacher for what is missing, compare, and tell; returns figures for the log.

        Several processes may call it at once: one fills, by workers where that was requested (`handover`), the others
        wait for it and read.
        """
        begin = time.monotonic()
        if self.missing or not all(self._report(field).exists() for field in self.fields):
            with self._alone(work):
                self._fill(work)
        reports = {field: Fidelity(**safe.read_json(self._report(field))) for field in self.fields}
        size = sum(shards.size() for shards in self.fields.values())
        work.say(f"teacher cache {self.path}: {self.division.rows:,} rows, {human_bytes(size)}")
        for field, report in reports.items():
            work.say(f"  {field.title}, {field.bits} bits, against the live teacher on {report.rows} rows: "
                     f"{report.sentence()}")  # fmt: skip
        figures = {"cache_mb": size / 1e6, "cache_seconds": time.monotonic() - begin}
        return figures | fidelity.worst(list(reports.values()))

    # --- filling ----------------------------------------------------------------------------------------------

    def _fill(self, work: Work) -> None:
        if self._note() is None:
            told = {"format": FORMAT, **dataclasses.asdict(self.identity), "rows": self.division.rows}
            atomic.write_json(self.path / NOTE, told)
        missing = self.missing
        new = {f: s for f, s in self.fields.items() if missing or not self._report(f).exists()}
        if not new:  # another process was faster
            return
        if missing:
            if len(missing) < len(self.division):
                work.say(
                    f"teacher cache {self.path}: {len(missing)} of {len(self.division)} shards are missing and will "
                    f"be computed"
                )
            work.services.share(self._describe_parts(work))
        for shards in self.fields.values():
            shards.write_index()
        for field, report in fidelity.compare(new, self.rows, work.live(), work.kept, work.device, FILL_TOKENS).items():
            atomic.write_json(self._report(field), dataclasses.asdict(report))

    def _describe_parts(self, work: Work) -> SharedParts:
        told = HandOver(self.path, self.identity, self.division, tuple(self.fields))
        return SharedParts(
            noun="teacher cache",
            place=self.path,
            list_missing=lambda: [str(shard) for shard in self.missing],
            make=lambda: self._filling.make(work.live, work.device, work.services),
            hand_over=lambda folder: told.write(folder, self.rows, [*self.missing], work.services),
        )

    @contextlib.contextmanager
    def _alone(self, work: Work):
        """Hold the cache for filling, however long another process takes to fill it."""
        told = False
        with contextlib.ExitStack() as held:
            while True:
                try:
                    held.enter_context(file_lock(self.path / LOCK, timeout=1.0))
                    break
                except UserError as error:
                    if error.code != ExitCode.REFUSED:
                        raise
                work.services.stop()
                if not told:
                    work.say(f"teacher cache {self.path}: another process is filling it; waiting")
                    told = True
            yield

    # --- what is there ----------------------------------------------------------------------------------------

    def _note(self) -> dict[str, Any] | None:
        """What the cache says of itself, checked; None where there is none yet."""
        path = self.path
        if path.exists() and not path.is_dir():
            raise UserError("the teacher cache must be a folder, found a file", where=str(path))
        if not (path / NOTE).exists():
            found = [p.name for p in path.iterdir()] if path.exists() else []
            others = [name for name in found if name != LOCK and not temporary.parse(name)]
            if others:
                raise UserError(
                    "this folder is not a teacher cache",
                    where=str(path),
                    why=f"it holds {', '.join(sorted(others)[:3])}, but no {NOTE}",
                    do="name a new folder",
                    code=ExitCode.REFUSED,
                )
            return None
        note = safe.read_json(path / NOTE)
        if note.get("format") != FORMAT:
            raise UserError(
                "the teacher cache was written by another version of this program",
                where=str(path),
                why=f"its format is {json.dumps(note.get('format'))}, this program's is {FORMAT}",
                do="remove it to have it rebuilt, or use another folder",
            )
        self.identity.check(note, path)
        return note

    def _report(self, field: Field) -> Path:
        return self.path / "fidelity" / f"{field.name}.json"


def _divided(rows: FixedRows) -> Division:
    """The same for all who share the rows, whatever they keep of the answers to them."""
    count, tokens = len(rows.lengths), int(rows.lengths.sum())
    least, most = SHARD_TOKENS
    per_shard = min(max(tokens / SHARDS, least), most)
    return Division(count, max(1, int(count * per_shard / tokens)))

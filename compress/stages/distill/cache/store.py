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

import numpy as np
import torch

from compress.contracts import Progress, Teacher
from compress.data.batches.fixed_rows import FixedRows
from compress.data.batches.ragged import bounds_of, gather
from compress.encoder.infer.prepare import Precision
from compress.errors import ExitCode, UserError
from compress.stages.distill.cache import fidelity
from compress.stages.distill.cache.fidelity import Fidelity
from compress.stages.distill.cache.fields import Field, counts, live_needs
from compress.stages.distill.cache.shards import Division, Shards
from compress.stages.shared.stage import SharedParts, StageServices
from compress.storage import atomic, claims, safe, temporary
from compress.storage.disk import human_bytes
from compress.storage.lock import file_lock

FORMAT = "teacher-cache-1"
NOTE, LOCK = "cache.json", ".fill.lock"
SHARD_TOKENS = (1 << 12, 1 << 15)
"""Least and most tokens of a shard: it is in memory while it is filled, and lost by a stop."""
SHARDS = 32
"""As many as a cache has between those bounds."""
FILL_TOKENS = 8192
"""Real tokens of one batch that the teacher answers while a cache is filled."""

_MADE_WITH = {
    "teacher": "with another teacher",
    "tokenizer": "with another tokenizer",
    "max_length": "for texts of another maximal length",
    "data": "for other data",
    "precision": "in another precision",
}


@dataclass(frozen=True)
class Identity:
    """Whose answers, to what. teacher, tokenizer, data: sha256.  max_length: pieces of a text.  precision: of the
    teacher's arithmetic."""

    teacher: str
    tokenizer: str
    max_length: int
    data: str
    precision: Precision

    def check(self, found: Mapping[str, Any], where: Path) -> None:
        """Raise UserError naming the first thing in which the cache at `where` differs, and both its values."""
        for name, told in _MADE_WITH.items():
            ours, theirs = getattr(self, name), found.get(name)
            if ours == theirs or (name == "precision" and theirs == "fp32"):  # exact answers serve coarser arithmetic
                continue
            shown = [str(value)[:16] for value in (theirs, ours)]
            raise UserError(
                f"the teacher cache was built {told}",
                where=str(where),
                why=f"its {name.replace('_', ' ')} is {shown[0]}, this run's is {shown[1]}",
                do="use another folder, or remove the cache to have it rebuilt",
            )


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

    def hold(self, fields: Sequence[Field], *, verify: bool = True) -> Mapping[Field, Shards]:
        """The fields that are to be there, each with its shards, of which some may be missing. verify: read every byte
        of the others; raises UserError (data) for one that is damaged or cut."""
        for field in fields:
            self.fields[field] = Shards(self.path / "fields" / field.name, field.columns, self.division)
        for shards in self.fields.values() if verify else ():
            shards.verify()
        return self.fields

    @property
    def missing(self) -> dict[int, list[Field]]:
        """Shard → the fields that it lacks."""
        found: dict[int, list[Field]] = {}
        for field, shards in self.fields.items():
            for shard in shards.list_missing():
                found.setdefault(shard, []).append(field)
        return dict(sorted(found.items()))

    def fill(self, work: Work) -> dict[str, float]:
        """Ask the live teacher for what is missing, compare, and tell; returns figures for the log.

        Several processes may call it at once: one fills, the others wait for it and read. A worker of the one that
        fills makes the shards that no other worker has taken, and no more.
        """
        begin = time.monotonic()
        if (claimed := work.services.claims) is not None:
            self._make(work, claimed)
            return {}
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
            missing_names = lambda: [str(shard) for shard in self.missing]  # noqa: E731
            work.services.share(SharedParts("teacher cache", self.path, missing_names, lambda: self._make(work)))
        for shards in self.fields.values():
            shards.write_index()
        for field, report in fidelity.compare(new, self.rows, work.live(), work.kept, work.device, FILL_TOKENS).items():
            atomic.write_json(self._report(field), dataclasses.asdict(report))

    def _make(self, work: Work, claimed: Path | None = None) -> None:
        """Make what is missing; claimed: of that, the shards that nobody else has taken by their numbers there."""
        missing = {str(shard): shard for shard in self.missing}
        total = sum(len(self.division.rows_of(shard)) for shard in missing.values()) if claimed is None else None
        live, done = work.live(), 0
        with work.services.progress("teacher cache", total, "rows") as progress:
            progress.update(done)
            for name in missing if claimed is None else claims.share_out(claimed, missing):
                shard = missing[name]
                fields = [field for field, shards in self.fields.items() if not shards.path(shard).exists()]
                if fields:  # else a worker of a command that was killed has written them meanwhile
                    done = self._fill_shard(shard, self.division.rows_of(shard), fields, live, work, progress, done)

    def _fill_shard(
        self,
        shard: int,
        rows: np.ndarray,
        fields: Sequence[Field],
        live: Teacher,
        work: Work,
        progress: Progress,
        done: int,
    ) -> int:
        """All or nothing of one shard: answers come shortest row first, and are put into the rows' order.

        done: rows of earlier shards; returns that with these rows."""
        needs = live_needs(fields)
        answers: dict[Field, list[dict[str, np.ndarray]]] = {field: [] for field in fields}
        entries: dict[str, list[np.ndarray]] = {field.per: [] for field in fields}
        asked = []
        for batch in self.rows.batches(rows, FILL_TOKENS):
            work.services.stop()
            with torch.no_grad():
                output = live(batch.to(work.device), needs)
            done += batch.rows
            progress.update(done)
            asked.append(batch.row_ids.numpy())
            for per, found in entries.items():
                found.append(counts(per, batch))  # type: ignore[arg-type]
            for field, parts in answers.items():
                parts.append(field.encode(output))
        order = np.argsort(np.concatenate(asked), kind="stable")
        for field, parts in answers.items():
            numbers = np.concatenate(entries[field.per])
            items, _ = gather(bounds_of(numbers.tolist()), order)
            arrays = {name: np.concatenate([part[name] for part in parts])[items] for name in field.columns}
            self.fields[field].write(shard, arrays, numbers[order])
        return done

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

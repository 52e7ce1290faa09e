"""Checkpoints: folders that are whole or not there, the newest valid one wins, old ones go only after the next.

`checkpoints/step-00000500/` holds model, optimizer and rng as safetensors, `state.json`, and the manifest that proves
them; `checkpoints/best-00000400/` the weights of the best validation, once, however many checkpoints name them.
Nothing is pickled. A name that is taken gets a number behind it: what lies there may be damaged, and is evidence.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from compress.errors import ExitCode, UserError
from compress.storage import atomic, faults, safe

FORMAT = 1
_NAME = re.compile(r"(step|best)-(\d{8})(?:-(\d+))?")
_STATE = "state.json"
_FILES = ("model", "optimizer", "rng")

_FILLED = faults.point("checkpoint.after_files")
_SAVED = faults.point("checkpoint.after_save")
_PRUNED = faults.point("checkpoint.after_prune")
_BEST_SAVED = faults.point("checkpoint.after_best")

_log = logging.getLogger("compress.training")


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that was verified. record: state.json."""

    path: Path
    record: dict[str, Any]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """File → tensors, on the host."""
        return {name: _read(self.path / f"{name}.safetensors") for name in _FILES}


@dataclass
class Checkpoints:
    """The checkpoints of one run, in `folder`, of which the newest `keep` stay."""

    folder: Path
    keep: int
    damaged: set[Path] = field(default_factory=set)

    def exist(self) -> bool:
        """Whether there is any checkpoint, whole or not."""
        return bool(self._names("step"))

    def newest(self) -> SavedCheckpoint | None:
        """The newest checkpoint that is whole, None when there is none at all. Warns of those passed over.

        Raises UserError (data, exit 4) when there are some and none is valid: starting over is not ours to decide.
        """
        reasons: dict[Path, str] = {}
        for path in reversed(self._names("step")):
            saved = self._verified(path, reasons)
            if saved is not None:
                for bad, why in reasons.items():
                    _log.warning("checkpoint %s is damaged (%s): continuing from %s", bad.name, why, path.name)
                self.damaged = set(reasons)
                return saved
        if reasons:
            listed = "; ".join(f"{path.name}: {why}" for path, why in reasons.items())
            do = "restore one from a backup, or start again in another folder"
            raise UserError(
                "no valid checkpoint is left", where=str(self.folder), why=listed, do=do, code=ExitCode.DATA
            )
        return None

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], record: Mapping[str, Any]) -> Path:
        """Commit a checkpoint, then remove what it makes superfluous. Raises UserError when the disk fails."""
        target = self._free_name("step", step)
        needed = sum(size_of(part) for part in tensors.values())
        # parents=False: a run whose folder was unmounted must not go on beneath the mount point.
        with atomic.new_folder(target, parents=False, needed=needed) as temp:
            for name in _FILES:
                atomic.write_safetensors(temp / f"{name}.safetensors", tensors[name])
            atomic.write_json(temp / _STATE, {"format": FORMAT, **record})
            faults.fault(_FILLED)
        faults.fault(_SAVED)
        self._prune(record)
        faults.fault(_PRUNED)
        return target

    def save_best(self, step: int, weights: Mapping[str, Tensor]) -> str:
        """Commit the weights of a best validation; returns the folder's name, for the next checkpoint to hold.

        Bests that no checkpoint names go now: between two checkpoints there may be many.
        """
        target = self._free_name("best", step)
        with atomic.new_folder(target, parents=False, needed=size_of(weights)) as temp:
            atomic.write_safetensors(temp / "model.safetensors", weights)
        faults.fault(_BEST_SAVED)
        self._prune_bests(self._names("step"), target.name)
        return target.name

    def load_best(self, name: str) -> dict[str, Tensor]:
        """The weights that `save_best` wrote. Raises UserError (data, exit 4) when they are damaged."""
        if why := atomic.verify_folder(self.folder / name):
            raise UserError(
                "the best weights are damaged", where=str(self.folder / name), why="; ".join(why), code=ExitCode.DATA
            )
        return _read(self.folder / name / "model.safetensors")

    def discard(self) -> None:
        """Remove every checkpoint of the run: for when its result is safe elsewhere."""
        for kind in ("step", "best"):
            self._remove(self._names(kind))

    def _verified(self, path: Path, reasons: dict[Path, str]) -> SavedCheckpoint | None:
        why = atomic.verify_folder(path)
        record: dict[str, Any] = {}
        if not why:
            try:
                record = safe.read_json(path / _STATE, limit=64 << 20)
            except UserError as error:
                why = [error.what]
        if not why and record.get("format") != FORMAT:
            why = [f"its format is {record.get('format')}, this program supports {FORMAT}"]
        if not why and (best := _best_of(record)) is not None:
            why = [f"{best}: {reason}" for reason in atomic.verify_folder(self.folder / best)]
        if why:
            reasons[path] = "; ".join(why)
            return None
        return SavedCheckpoint(path, record)

    def _prune(self, record: Mapping[str, Any]) -> None:
        sound = [path for path in self._names("step") if path not in self.damaged]
        self._remove([*sound[: -self.keep], *self.damaged])
        self.damaged.clear()
        self._prune_bests(sound[-self.keep :], _best_of(record))

    def _prune_bests(self, checkpoints: Iterable[Path], current: str | None) -> None:
        held = {current} | {_best_of(self._peek(path)) for path in checkpoints}
        self._remove(path for path in self._names("best") if path.name not in held)

    def _peek(self, path: Path) -> dict[str, Any]:
        try:
            return safe.read_json(path / _STATE, limit=64 << 20)
        except UserError:
            return {}

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                atomic.remove_folder(path)
            except UserError as error:  # not in a state that we would have left: whoever changed it may want it
                _log.warning("an old checkpoint was not removed: %s", error.line())

    def _names(self, kind: str) -> list[Path]:
        """Folders of one kind, oldest first."""
        if not self.folder.is_dir():
            return []
        named = [(match, path) for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        ours = [(int(m[2]), int(m[3] or 0), path) for m, path in named if m[1] == kind]
        return [path for *_, path in sorted(ours)]

    def _free_name(self, kind: str, step: int) -> Path:
        path, attempt = self.folder / f"{kind}-{step:08d}", 0
        while path.exists():
            attempt += 1
            path = self.folder / f"{kind}-{step:08d}-{attempt}"
        return path


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _best_of(record: Mapping[str, Any]) -> str | None:
    best = record.get("state", {}).get("best")
    return None if best is None else best["folder"]


def _read(path: Path) -> dict[str, Tensor]:
    return safe.load_safetensors(path, max_tensors=1_000_000, max_header=256 << 20)

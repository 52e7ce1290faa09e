"""When to save, and what to do when saving fails: the loop's memory of what is on the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from compress.errors import ExitCode, UserError
from compress.storage import atomic
from compress.training.checkpoint import Checkpoints, SavedCheckpoint, size_of
from compress.training.staging import HostCopy, Staging
from compress.training.state import Best, TrainState, load_model, model_tensors

_MISSES = 3  # checkpoints in a row that may fail before the run stops
_ROOM = 2.5  # free disk at the start, in checkpoints: one kept, one being written, and something over

_log = logging.getLogger("compress.training")


def writes_in_background(device: torch.device) -> bool:
    """Whether a thread writes checkpoints while training goes on. Not on a CPU: the thread would take its time from the
    computation, and the state would be there twice."""
    return device.type == "cuda"


class _Writing(NamedTuple):
    """A checkpoint that a thread writes. best: whose weights it writes too."""

    step: int
    moment: tuple[int, int]
    best: Best | None
    staged: HostCopy
    path: Future[Path]


class Keeper:
    """Checkpoints of `state` in `folder`/checkpoints, and the weights of its best validation.

    identity: what a checkpoint must share with the run that continues it.  environment: what its bits depend on.
    With `writes_in_background`, one thread writes one checkpoint at a time, from a copy of the state.
    """

    def __init__(
        self, folder: Path, keep: int, state: TrainState, identity: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self.checkpoints = Checkpoints(folder / "checkpoints", keep)
        background = writes_in_background(state.device)
        self._thread = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._staging = Staging(state.device)
        self._writing: _Writing | None = None
        self.state, self.identity, self.environment = state, dict(identity), dict(environment)
        self.requested_threads: int | Literal["auto"] | None = None
        self.chosen_threads: int | None = None
        """What `auto` chose when the run began."""
        self.chosen_steps: int | None = None
        """How many steps fit into the time limit, by what was timed when the run began."""
        self._last: tuple[Path, tuple[int, int]] | None = None
        self._misses = 0
        self._missed_step: int | None = None
        self._unsaved_best: dict[str, Tensor] | None = None

    @property
    def last(self) -> Path | None:
        """The newest checkpoint."""
        return None if self._last is None else self._last[0]

    def start(self, resume: bool) -> list[str]:
        """Continue from the newest valid checkpoint if there is one; returns what is worth telling about that.

        Raises UserError for checkpoints that are there without `resume`, that belong to another run, of which none is
        valid, and for a disk without room.
        """
        atomic.make_folder(self.checkpoints.folder)
        if not resume and self.checkpoints.exist():
            do = "continue it with --resume, or choose another output folder"
            where = str(self.checkpoints.folder)
            raise UserError(
                "the folder contains checkpoints of an earlier run", where=where, do=do, code=ExitCode.REFUSED
            )
        saved = self.checkpoints.newest()
        notes = [] if saved is None else self._continue(saved)
        if resume and saved is None:
            _log.warning("nothing to resume: no checkpoint was written yet, starting from step 0")
        moments = 2 * size_of(self.state.optimizer.parameters)
        size = size_of(model_tensors(self.state.module)) + moments
        atomic.require_free(self.checkpoints.folder, int(_ROOM * size))
        return notes

    def save(self, *, wait: bool = True) -> bool:
        """Write a checkpoint unless this moment is saved already; False when the disk refused.

        wait: until it is written. Otherwise a thread may write it, and what it raises is raised by the next `collect`
        or `save`. Raises UserError (resources) when the disk refused too often in a row, and at once for what is not
        the disk's fault.
        """
        if self._writing is None or self._writing.moment != self._moment():
            self.collect(wait=True)
            if self._last is not None and self._last[1] == self._moment():
                return True
            if self._thread is None:
                return self._try(self._write, self.state.step)
            self._writing = self._begin(self._thread)
        return self.collect(wait=True) if wait else True

    def collect(self, *, wait: bool = False) -> bool:
        """Note what the thread has written; False when the disk refused. Raises UserError as `save` does.

        wait: for what it is writing now.
        """
        if self._writing is None or not (wait or self._writing.path.done()):
            return True
        done, self._writing = self._writing, None
        return self._try(lambda: self._note(done), done.step)

    def await_copy(self) -> None:
        """Called before weights and moments change: on a GPU, that happens when a checkpoint has its copy of them."""
        if self._writing is not None:
            self._writing.staged.hold_back_changes()

    def close(self) -> None:
        """End the thread, once it has written what it began."""
        if self._thread is not None:
            self._thread.shutdown()
        if self._writing is not None and (error := self._writing.path.exception()) is not None:
            _log.warning("checkpoint at step %d failed: %s", self._writing.step, error)

    def offer_best(self, metrics: dict[str, float], value: float) -> None:
        """Note that the weights as they are now are the best so far."""
        self.state.best = Best(self.state.step, value, metrics)
        # Held in memory until it is on the disk: a full disk must not decide which weights win.
        self._unsaved_best = {name: tensor.clone() for name, tensor in model_tensors(self.state.module).items()}
        if self._thread is None:  # else it is written with the next checkpoint
            self._try(self._write_best, self.state.step)

    def restore_best(self) -> None:
        """Put the best weights back into the module, if a best was ever offered."""
        best = self.state.best
        if best is None:
            return
        weights = self._unsaved_best
        if weights is None:
            assert best.folder is not None
            weights = self.checkpoints.load_best(best.folder)
        load_model(self.state.module, weights)

    def _continue(self, saved: SavedCheckpoint) -> list[str]:
        changes = _differences(saved.record["identity"], self.identity)
        if changes:
            raise UserError(
                "cannot resume: the saved run has different settings",
                where=str(saved.path),
                why=", ".join(changes),
                do="undo the change, or start again in another output folder",
                code=ExitCode.REFUSED,
            )
        self.state.restore(saved.tensors(), saved.record["state"])
        self._last = saved.path, self._moment()
        self._adopt_threads(saved.record)
        self.chosen_steps = saved.record.get("chosen_steps")
        moved = _differences(saved.record["environment"], self.environment)
        if not moved:
            return []
        _log.warning(note := "not bit-exact: " + ", ".join(moved))
        return [note]

    def set_threads(self, count: int) -> None:
        """Record the number of threads that was chosen: the run's bits depend on it."""
        self.chosen_threads, self.environment["threads"] = count, str(count)

    def _adopt_threads(self, record: Mapping[str, Any]) -> None:
        """A run that goes on keeps the number that was chosen, unless another is requested."""
        chosen = record.get("chosen_threads")
        if self.requested_threads == "auto":
            chosen = chosen or record["environment"]["threads"]
        elif self.requested_threads is not None:
            return
        if chosen is not None:
            self.set_threads(int(chosen))

    def _write(self) -> None:
        if self._unsaved_best is not None:
            self._write_best()
        path = self.checkpoints.save(self.state.step, self.state.tensors(), self._record())
        self._last, self._misses = (path, self._moment()), 0

    def _record(self) -> dict[str, Any]:
        """What a checkpoint holds beside tensors, as it is now."""
        record = {"state": self.state.counters(), "identity": self.identity, "environment": dict(self.environment)}
        if self.chosen_threads is not None:
            record["chosen_threads"] = self.chosen_threads
        if self.chosen_steps is not None:
            record["chosen_steps"] = self.chosen_steps
        return record

    def _write_best(self) -> None:
        assert self.state.best is not None
        assert self._unsaved_best is not None
        self.state.best.folder = self.checkpoints.save_best(self.state.best.step, self._unsaved_best)
        self._unsaved_best = None

    def _begin(self, thread: ThreadPoolExecutor) -> _Writing:
        """Copy the state, and let the thread write it."""
        state, best, tensors = self.state, None, self.state.tensors()
        trained = {name: x for name, x in tensors["model"].items() if name in state.optimizer.parameters}
        # What is not trained, a forward pass may change.
        others = {name: x for name, x in tensors["model"].items() if name not in trained}
        late = {"model": trained, "optimizer": tensors["optimizer"]}
        if self._unsaved_best is not None:
            best, late["best"] = state.best, self._unsaved_best
        staged = self._staging.copy({"model": others, "rng": tensors["rng"]}, late)
        path = thread.submit(self._write_copy, state.step, best, staged, self._record())
        return _Writing(state.step, self._moment(), best, staged, path)

    def _write_copy(self, step: int, best: Best | None, staged: HostCopy, record: dict[str, Any]) -> Path:
        """By the thread, which reads nothing that the next steps change."""
        tensors = staged.wait()
        if best is not None:
            best.folder = self.checkpoints.save_best(best.step, tensors["best"])
            record["state"]["best"]["folder"] = best.folder
        return self.checkpoints.save(step, tensors, record)

    def _note(self, done: _Writing) -> None:
        try:
            path = done.path.result()
        finally:
            if done.best is not None and done.best is self.state.best and done.best.folder is not None:
                self._unsaved_best = None
        self._last, self._misses = (path, done.moment), 0

    def _try(self, write: Callable[[], None], step: int) -> bool:
        """Do it, or warn and let the next interval try again; too many misses in a row end the run."""
        try:
            write()
        except UserError as error:
            if not _from_the_disk(error):
                raise
            if step != self._missed_step:  # of a step, the best weights and the checkpoint are one attempt
                self._missed_step, self._misses = step, self._misses + 1
            if self._misses >= _MISSES:
                do = f"{error.do or 'free some space'}, then use --resume" if self._last else error.do
                why = f"{error.why or error.what}; {self._misses} checkpoints in a row failed"
                raise UserError(error.what, where=error.where, why=why, do=do, code=ExitCode.RESOURCES) from error
            _log.warning("checkpoint at step %d failed, trying again later: %s", step, error.line())
            return False
        return True

    def _moment(self) -> tuple[int, int]:
        return self.state.step, self.state.validated


class NullMonitor:
    """A Keeper that keeps nothing: of the processes that train together, the first one writes for all."""

    last: Path | None = None
    chosen_threads: int | None = None
    chosen_steps: int | None = None

    def __init__(self, state: TrainState) -> None:
        self.state = state

    def start(self, resume: bool) -> list[str]:
        return []

    def save(self, *, wait: bool = True) -> bool:
        return True

    def collect(self) -> bool:
        return True

    def await_copy(self) -> None: ...

    def close(self) -> None: ...

    def offer_best(self, metrics: dict[str, float], value: float) -> None:
        """Note it, so that later ones are judged as the first process judges them."""
        self.state.best = Best(self.state.step, value, metrics)

    def restore_best(self) -> None: ...


def _from_the_disk(error: BaseException | None) -> bool:
    """Whether an OSError is at the root: a file's error may be retold as its folder's."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """`name old → new` of every entry that is not equal on both sides."""
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"{name} {_short(before.get(name), now.get(name))} → {_short(now.get(name), before.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _short(value: str | None, other: str | None) -> str:
    """Of a long value the beginning, or where it begins to differ from the other one."""
    if value is None:
        return "(none)"
    if len(value) <= 40:
        return value
    common = next((i for i, (a, b) in enumerate(zip(value, other or "")) if a != b), 0)
    start = 0 if common < 16 else common - 8
    return f"{'…' if start else ''}{value[start : start + 16]}…"

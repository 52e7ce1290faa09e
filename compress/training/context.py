"""What the loop is given beside the model, the data and the plan, and what it gives back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn

from compress.contracts import Progress, RunLog
from compress.training.distributed import Team
from compress.training.precision import Precision

_log = logging.getLogger("compress.training")


class StopRequest(Protocol):
    """A flag that a signal sets; `requested` is the signal's name once it did."""

    @property
    def requested(self) -> Any: ...


class NullLog:
    """A RunLog that keeps nothing, for a training that is no run of its own."""

    def params(self, values: Mapping[str, Any]) -> None: ...

    def tags(self, values: Mapping[str, str]) -> None: ...

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None: ...

    def artifact(self, path: Path, folder: str = "") -> None: ...

    def note(self, markdown: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """Where and for whom a run works; nothing in it changes what is learned, but for the seed.

    folder: of the run; checkpoints go below it.  validate: module → metrics, called in evaluation mode without
    gradient; it may raise Stopped.  select: the metric that names the best validation, and whether more is better.
    identity: what must be equal on resume (recipe, tokenizer ...).  environment: what bits depend on, beside torch,
    device, precision, threads and instruction set, which are added here.
    """

    folder: Path
    log: RunLog
    progress: Progress
    stop: StopRequest
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision | None = None
    """Overrules the plan's."""
    threads: int | Literal["auto"] | None = None
    """Number of CPU threads, set while the run trains; "auto": one or all, whichever is faster. None: the plan's."""
    seed: int = 0
    validate: Callable[[nn.Module], Mapping[str, float]] | None = None
    select: tuple[str, Literal["max", "min"]] | None = None
    watched: Mapping[str, Literal["max", "min"]] = field(default_factory=dict)
    """Further metrics, which keep a training of automatic length going as long as they get better. Of validations with
    an equal `select`, the best by these, in their order, is the best; of equal ones the last."""
    observe: Callable[[nn.Module, Sequence[Mapping[str, float]]], Mapping[str, float]] | None = None
    """Called after each validation with the validations so far, the new one last: gives figures to add to it."""
    resume: bool = False
    identity: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = _log.info
    """Takes a line for people."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds, by which `threads` "auto" compares, and steps are timed for a time limit."""
    team: Team | None = None
    """The processes that train together; None: this one alone."""


@dataclass(frozen=True)
class TrainResult:
    """What a finished run has to tell; the module holds the weights.

    best_step: whose weights they are, None when they are the last ones.  best, last: metrics of that validation and
    of the last.  seconds: spent in steps, over all sessions.  notes: e.g. that bits may differ since a resume.
    """

    steps: int
    seconds: float
    tokens: int
    skipped_steps: int
    best_step: int | None
    best: Mapping[str, float]
    last: Mapping[str, float]
    history: Sequence[Mapping[str, float]]
    end: str = ""
    """Why a training of automatic length ended, for people; of others nothing."""
    stopped: bool = False
    """Whether it ended because its metric had stopped rising."""
    notes: Sequence[str] = ()

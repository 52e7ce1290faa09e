"""The whole state of a training run, in one place: what is not in here is not continued."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from compress.errors import ExitCode, UserError
from compress.training import rng
from compress.training.optimizer import Optimizer


@dataclass
class Best:
    """The best validation so far. folder: name of the folder beside the checkpoints that holds its weights."""

    step: int
    value: float
    metrics: dict[str, float]
    folder: str | None = None


@dataclass
class Window:
    """Sums since the last line of the training log. sums: name → [sum, number of steps in it].

    operations: of the models' products, 0 where unknown.  joules: None where they, or those of a part, are unknown.
    """

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    operations: int = 0
    joules: float | None = 0.0
    sums: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class TrainState:
    """Everything that the next step depends on, and everything that the result will tell.

    module, optimizer and the random generators are read and written in place by `tensors` and `restore`; all other
    fields are counters that go to JSON. The schedule has no state: it is a function of `step`.
    """

    module: nn.Module
    optimizer: Optimizer
    device: torch.device
    epoch: int = 0
    """Passes over the data that are complete."""
    index: int = 0
    """Steps of this epoch that are done."""
    step: int = 0
    """Steps of the run that are done, the skipped ones too."""
    validated: int = 0
    """The step after which the model was last validated."""
    best: Best | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    """One row per validation: `step` and its metrics."""
    window: Window = field(default_factory=Window)
    bad_steps: int = 0
    """Steps skipped because the loss or the gradient was not finite."""
    bad_in_a_row: int = 0
    tokens: int = 0
    seconds: float = 0.0
    joules: float | None = 0.0
    """Of all steps; None where they, or those of a part, are unknown."""

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """File name without ending → tensors: weights, moments, random generators."""
        return {
            "model": model_tensors(self.module),
            "optimizer": self.optimizer.state(),
            "rng": rng.capture(self.device),
        }

    def counters(self) -> dict[str, Any]:
        """All other fields, as JSON can hold them (a number that is not finite as its name)."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("module", "optimizer", "device")]
        return {name: _plain(getattr(self, name)) for name in names}

    def restore(self, tensors: Mapping[str, Mapping[str, Tensor]], counters: Mapping[str, Any]) -> None:
        """Become the state that `tensors` and `counters` were taken from."""
        load_model(self.module, tensors["model"])
        self.adopt(tensors["optimizer"], counters)
        rng.restore(tensors["rng"], self.device)

    def adopt(self, moments: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        """Take over moments and counters; weights and random generators stay."""
        self.optimizer.load(moments)
        best, window = counters["best"], counters["window"]
        self.best = None if best is None else _best(best)
        self.window = Window(**{**_UNCOUNTED, **window, "sums": dict(window["sums"])})
        self.history = [_numbers(row) for row in counters["history"]]
        for name in ("epoch", "index", "step", "validated", "bad_steps", "bad_in_a_row", "tokens", "seconds"):
            setattr(self, name, counters[name])
        self.joules = counters.get("joules")


def model_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Name → tensor of all weights and saved buffers, a shared one once, under its first name."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor.detach()))
    return dict(found.values())


def load_model(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into the module's own. Raises UserError when names or shapes differ."""
    own = model_tensors(module)
    wrong = sorted(own.keys() ^ tensors.keys()) or [n for n in own if own[n].shape != tensors[n].shape]
    if wrong:
        why = f"'{wrong[0]}' is missing on one side or has another shape"
        raise UserError("the checkpoint's weights do not match this model", why=why, code=ExitCode.REFUSED)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


_UNCOUNTED = {"rows": 0, "operations": 0, "joules": None}
"""Of a window that an older version wrote."""


def _best(row: Mapping[str, Any]) -> Best:
    return Best(row["step"], float(row["value"]), _numbers(row["metrics"]), row["folder"])


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: value if isinstance(value, int) else float(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

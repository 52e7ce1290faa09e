"""What the steps report: losses into the log, and the steps that went bad into a decision.

The figures of a step stay on its device until they are drained: at every step on a CPU, where that costs nothing, and
at the log's pace on an accelerator, which is not to be waited for. A bad step has changed nothing by then, since the
optimizer skipped it on the device.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from compress.errors import ExitCode, UserError, list_some
from compress.training.state import TrainState

_log = logging.getLogger("compress.training")

LOSS, NORM = "loss", "grad_norm"


@dataclass(frozen=True)
class StepReport:
    """One optimizer step. figures: name → scalar on the device, with `loss` and `grad_norm`.  rows: its data rows.
    operations: of this process's share, 0 where unknown.  waits: of the host for the device, where they were counted.
    """

    step: int
    figures: dict[str, Tensor]
    rows: Tensor
    tokens: int
    operations: int = 0
    waits: int | None = None


class Meter:
    """Takes the reports of the steps into `state`. limit: bad steps in a row that are skipped before the run stops.
    peak: operations a second that the device is capable of; None where unknown."""

    def __init__(self, state: TrainState, limit: int, peak: float | None = None) -> None:
        self.state, self.limit, self.peak = state, limit, peak
        self.last_loss = math.nan
        self._waiting: list[StepReport] = []
        self._waits: int | None = None

    def add(self, report: StepReport) -> None:
        """Note a step that was made, or on an accelerator at least begun."""
        self._waiting.append(report)
        window = self.state.window
        window.rows += len(report.rows)
        window.tokens += report.tokens
        window.operations += report.operations
        self.state.tokens += report.tokens
        self._waits = self._waits if report.waits is None else report.waits

    def spend(self, seconds: float) -> None:
        """Note time that went into steps, waiting for their figures included."""
        self.state.window.seconds += seconds
        self.state.seconds += seconds

    def add_energy(self, joules: float | None) -> None:
        """Note energy that went into steps; None: nobody knows how much."""
        for sums in (self.state, self.state.window):
            sums.joules = None if joules is None or sums.joules is None else sums.joules + joules

    def drain(self, last_checkpoint: str | None) -> None:
        """Read the figures of all waiting steps in one transfer.

        Raises UserError (data, exit 4) when too many in a row were bad; `last_checkpoint` is what it then names.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        flat = torch.stack([value.double() for report in waiting for value in report.figures.values()]).tolist()
        for report in waiting:
            values = dict(zip(report.figures, flat))
            del flat[: len(values)]
            if math.isfinite(values[LOSS]) and math.isfinite(values[NORM]):
                self._good(values)
            else:
                self._bad(report, values, last_checkpoint)

    def require_good_step(self) -> None:
        """Raise UserError (data, exit 4) where all steps were bad: nothing was learned."""
        steps = self.state.step
        if not self._waiting and 0 < steps <= self.state.bad_steps:
            raise UserError(
                "training produced non-finite values",
                where=f"step {steps}",
                why=f"the loss or gradient of all {steps} steps was not finite" if steps > 1 else "in its only step",
                do="lower the learning rate, or check the data and the weights of the model",
                code=ExitCode.DATA,
            )

    def line(self, learning_rate: float) -> dict[str, float]:
        """The means since the last line, under their names in the log; starts the next window."""
        window = self.state.window
        line = {f"train/{name}": total / count for name, (total, count) in window.sums.items()}
        line["train/learning_rate"] = learning_rate
        if window.seconds > 0:
            line["train/tokens_per_second"] = window.tokens / window.seconds
            if self.peak is not None and window.operations:
                line["train/mfu_pct"] = 100 * window.operations / window.seconds / self.peak
        if window.joules and window.rows:
            line["train/joules_per_1000_rows"] = 1000 * window.joules / window.rows
        if self._waits is not None:
            line["train/waits_per_step"], self._waits = float(self._waits), None
        if self.state.bad_steps:
            line["train/skipped_steps"] = float(self.state.bad_steps)
        self.state.window = type(window)()
        return line

    @property
    def tokens_per_second(self) -> float:
        """Since training began."""
        return self.state.tokens / self.state.seconds if self.state.seconds else 0.0

    def _good(self, values: dict[str, float]) -> None:
        self.state.bad_in_a_row = 0
        self.last_loss = values[LOSS]
        self.state.window.steps += 1
        for name, value in values.items():
            total, count = self.state.window.sums.get(name, (0.0, 0))
            self.state.window.sums[name] = [total + value, count + 1]

    def _bad(self, report: StepReport, values: dict[str, float], last_checkpoint: str | None) -> None:
        self.state.bad_steps += 1
        self.state.bad_in_a_row += 1
        whats = [name for name, value in values.items() if not math.isfinite(value)]
        what = ", ".join(f"{name} is {values[name]}" for name in whats)
        rows = list_some(report.rows.tolist(), 12)
        if self.state.bad_in_a_row <= self.limit:
            _log.warning("step %d skipped: %s; rows %s", report.step, what, rows)
            return
        raise UserError(
            "training produced non-finite values",
            where=f"step {report.step}",
            why=f"{what}, {self.state.bad_in_a_row} such steps in a row; rows {rows}",
            do=f"lower the learning rate or check these rows; last good checkpoint: {last_checkpoint or 'none yet'}",
            code=ExitCode.DATA,
        )

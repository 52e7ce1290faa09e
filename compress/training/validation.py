"""Validation between two steps: the model's metrics, with the generators and the mode of training left as they were."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from compress.errors import UserError
from compress.training import rng
from compress.training.context import TrainingContext
from compress.training.distributed import Alone, Team
from compress.training.keeper import Keeper, NullMonitor
from compress.training.state import TrainState


class Validator:
    """Validates the module of `state` as the context says, and offers the keeper what is best."""

    def __init__(
        self, state: TrainState, keeper: Keeper | NullMonitor, team: Team | Alone, context: TrainingContext
    ) -> None:
        self._state, self._keeper, self._team, self._context = state, keeper, team, context

    def measure(self) -> dict[str, float]:
        """The metrics of the weights as they are. May raise Stopped, as the context's `validate` may."""
        assert self._context.validate is not None
        module = self._state.module
        module.eval()
        try:
            with rng.preserve_generators(self._state.device), torch.no_grad():
                with self._team.share_rows():
                    metrics = {name: float(value) for name, value in self._context.validate(module).items()}
                return {**metrics, **self._observe(metrics)}
        finally:
            module.train()

    def note(self, metrics: dict[str, float], *, keep_best: bool) -> None:
        """Add metrics to the history and to the log. keep_best: hold on to the weights where none before were better
        (`is_worse`).

        Raises UserError where the metric to select by is not among them.
        """
        state = self._state
        state.validated = state.step
        state.history.append({"step": state.step, **metrics})
        finite = {f"val/{name}": value for name, value in metrics.items() if math.isfinite(value)}
        self._context.log.metrics(finite, state.step)
        if keep_best and self._context.select is not None:
            self._judge(metrics, *self._context.select)

    def _observe(self, metrics: Mapping[str, float]) -> dict[str, float]:
        if self._context.observe is None or isinstance(self._keeper, NullMonitor):
            return {}
        history = [*self._state.history, {"step": self._state.step, **metrics}]
        return {name: float(value) for name, value in self._context.observe(self._state.module, history).items()}

    def _judge(self, metrics: dict[str, float], name: str, mode: str) -> None:
        if name not in metrics:
            raise UserError(
                f"unknown metric '{name}' to select by", why=f"validation reports {', '.join(sorted(metrics))}"
            )
        best = self._state.best
        modes = {name: mode, **self._context.watched}
        if math.isfinite(metrics[name]) and (best is None or not is_worse(metrics, best.metrics, modes)):
            self._keeper.offer_best(metrics, metrics[name])


def is_worse(metrics: Mapping[str, float], best: Mapping[str, float], modes: Mapping[str, str]) -> bool:
    """Whether a later validation is worse than the best one before it. The first figure that differs decides, such as
    the loss where the scores are equal; one that is not finite, or missing, is worse. Where all are equal, it is not:
    the later weights have learnt more. modes: figure → whether more ("max") or less is better."""
    for name, mode in modes.items():
        now, before = (row.get(name, math.nan) for row in (metrics, best))
        if not math.isfinite(now) or not math.isfinite(before):
            now, before = math.isfinite(now), math.isfinite(before)
        elif mode == "min":
            now, before = -now, -before
        if now != before:
            return now < before
    return False

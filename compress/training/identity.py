"""What a run must share with the checkpoint that it continues, and what its bits depend on beside that."""

from __future__ import annotations

from compress.contracts import TrainingPlan
from compress.training import environment
from compress.training.context import TrainingContext
from compress.training.precision import Resolved

# What of the plan may change between a run and its continuation without changing the weights; precision and threads are
# a part of the environment instead, since `auto` says different things on different machines.
_FREE = {"checkpoint_every", "keep_checkpoints", "log_every", "max_bad_steps", "precision", "threads"}


def describe_settings(plan: TrainingPlan, data: str, steps: str, context: TrainingContext) -> dict[str, str]:
    """What must be equal for a run to go on. data: fingerprint.  steps: how many were asked for."""
    settings = {f"training.{name}": str(value) for name, value in plan.model_dump().items() if name not in _FREE}
    return {**settings, "data": data, "seed": str(context.seed), "total steps": steps, **context.identity}


def describe_environment(computed_in: Resolved, context: TrainingContext) -> dict[str, str]:
    """What may differ when a run goes on; its bits differ then."""
    here = {**environment.describe(context.device, computed_in), **context.environment}
    if context.team is not None:  # sums are rounded, and dropout drawn, by process
        here["processes"] = str(context.team.place.world)
    return here

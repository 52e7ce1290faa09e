"""How long models take to answer, side by side, as a recipe's `evaluation.latency` says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from compress.contracts import Needs
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.predict.predictor import build_fixed_batch
from compress.recipe.schema import LatencySpec
from compress.training.precision import serving_precision
from evaluation.cost.latency import Latency, measure_interleaved


def choose_length(positions: Iterable[tuple[str, int]], asked: int | None) -> int:
    """Tokens of the sequences that models are timed with: `asked`, else 128 or the most that fit all of them.

    positions: (name, longest sequence it reads) of each model. Raises UserError when what was asked for does not fit.
    """
    name, longest = min(positions, key=lambda one: one[1])
    if asked is not None and asked > longest:
        do = f"give at most {longest}, or remove the option"
        raise UserError(f"{name} has {longest} positions", where=f"--length {asked}", do=do)
    return asked or min(LatencySpec().tokens, longest)


def measure_models(models: Sequence[Model], plan: LatencySpec, device: str) -> list[Latency]:
    """Of each model with its task head, prepared for inference on the device; timed in turn."""
    return measure_calls([build_call(model, plan, device) for model in models], plan, device)


def build_call(model: Model, plan: LatencySpec, device: str) -> Callable[[], object]:
    """A call of the model, prepared, on a batch of the planned shape."""
    config, ready = model.config, prepare(model, serving_precision("auto", device))
    batch = build_fixed_batch(config, plan.batch, min(plan.tokens, config.max_positions)).to(device)
    return lambda: ready(batch, Needs(logits=True))


def measure_calls(calls: Sequence[Callable[[], object]], plan: LatencySpec, device: str) -> list[Latency]:
    """In turn, as planned."""
    return measure_interleaved(
        calls,
        device=device,
        warmup=plan.warmup,
        repeats=plan.repeats,
        seconds=plan.seconds,
    )

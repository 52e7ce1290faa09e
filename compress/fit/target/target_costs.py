"""What plans cost on a target: its tables in place of a measurement here, and the latency of each plan, predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compress.console import Console
from compress.errors import UserError, did_you_mean
from compress.fit.cost.assembly import add_blocks
from compress.fit.cost.block_table import describe_shape
from compress.fit.cost.blocks import add_weighted
from compress.fit.cost.cost_model import Costs
from compress.fit.cost.samples import list_shapes
from compress.fit.cost.serving import FLOAT, Serving
from compress.fit.cost.text_costs import weigh_lengths
from compress.fit.make.evaluator import Prediction, Timing
from compress.fit.plan.plans import Plan
from compress.fit.request.case import Case
from compress.fit.target.kit import narrow
from compress.fit.target.target_file import Target, TimedLength
from compress.modelfolder.folder import LoadedModel
from compress.onnx.runtimes import Runtime, make_missing_error, versions


@dataclass(frozen=True)
class _Able:
    """A runtime of the target, with the milliseconds of whole models for what is served. static: None where the target
    does not say."""

    serving: Serving
    weights: Mapping[int, float]
    whole: float
    narrow: float
    static: float | None


def read_costs(case: Case, target: Target) -> Costs:
    """The costs on the target, in `--runtime` or in the one that answers the whole model in 8 bits soonest.

    Raises UserError where the target is of another model or batch, lacks a length that is served, or has no runtime
    that is installed here: plans are evaluated here in the same runtime.
    """
    loaded, where = case.loaded, str(target.path)
    target.require_shape(loaded.config, loaded.heads)
    if target.content.batch != case.wanted.batch:
        do = f"add --batch {target.content.batch}, or measure the target with --batch {case.wanted.batch}"
        raise UserError(f"batch is {target.content.batch}, the fit's is {case.wanted.batch}", where=where, do=do)
    runtimes = choose_runtimes(target, case.options.runtime, case.console)
    able = [_weigh(target, Serving(name, **case.shape), loaded) for name in runtimes]
    best = min(able, key=lambda one: one.whole)
    config, serving = loaded.config, best.serving
    blocks = add_weighted([
        (weight, target.blocks(serving, config, loaded.heads, length)) for length, weight in best.weights.items()
    ])  # fmt: skip
    costs = Costs(serving, blocks, f"target {target.digest}")
    tokenization = 0.0 if case.texts is None else case.texts.measure_tokenization()
    usual = serving.bits[0]
    planned, narrowed = (add_blocks(blocks, list_shapes(one), usual) for one in (config, narrow(config)))
    whole = best.whole + tokenization
    costs.correct((planned, whole), (narrowed, best.narrow + tokenization))
    parent = add_blocks(blocks, list_shapes(config), FLOAT) * costs.factor + costs.extra
    about = Prediction(
        target.name, target.content.device.model_dump(), blocks.margin, tokenization,
        {str(length): timed.whole for length, timed in target.content.runtimes[serving.runtime].lengths.items()},  # type: ignore[index]
        describe_shape(config, loaded.heads),
    )  # fmt: skip
    costs.timing = Timing.predict(whole, parent, about)
    costs.static_ms = None if best.static is None else best.static + tokenization
    _report(case, target, costs, about)
    return costs


def predict_plan(costs: Costs, plan: Plan) -> Timing:
    """What a plan takes on the target."""
    assert costs.timing is not None
    ms = plan.ms
    return replace(costs.timing, p50=ms, p95=ms, minimum=ms)


def choose_runtimes(target: Target, asked: str | None, console: Console) -> Sequence[Runtime]:
    """Those of the target that are installed here, or the one that is asked for. Raises UserError without any."""
    there: Sequence[Runtime] = list(target.content.runtimes)
    if asked not in (None, "auto"):
        if asked not in there:
            do = did_you_mean(str(asked), there)
            raise UserError(f"runtimes has no '{asked}'", where=str(target.path), do=do)
        there = [name for name in there if name == asked]
    missing = [name for name in there if versions()[name] is None]
    able: Sequence[Runtime] = [name for name in there if name not in missing]
    if not able:
        raise make_missing_error(ImportError(name=missing[0]), missing[0])
    for name in missing:
        console.note(f"{name}: skipped: the target has it, but it is not installed here, where plans are evaluated")
    return able


def _weigh(target: Target, serving: Serving, loaded: LoadedModel) -> _Able:
    positions = loaded.config.max_positions
    if serving.texts is None:
        weights = {min(serving.length, positions): 1.0}
    else:
        weights = weigh_lengths(serving.texts, positions)
    lengths: Mapping[int, TimedLength] = target.content.runtimes[serving.runtime].lengths  # type: ignore[index]
    missing = [str(length) for length in weights if length not in lengths]
    if missing:
        every = ",".join(map(str, sorted({*lengths, *weights})))
        raise UserError(
            f"runtimes.{serving.runtime}.lengths lacks {', '.join(missing)} tokens", where=str(target.path),
            do=f"measure it again with --lengths {every}",
        )  # fmt: skip
    took = [(weight, lengths[length]) for length, weight in weights.items()]
    whole, narrowed = (sum(weight * getattr(timed, name) for weight, timed in took) for name in ("whole", "narrow"))
    static = [weight * timed.static for weight, timed in took if timed.static is not None]
    return _Able(serving, weights, whole, narrowed, sum(static) if len(static) == len(took) else None)


def _report(case: Case, target: Target, costs: Costs, about: Prediction) -> None:
    busy = "; it was measured on a busy machine" * costs.blocks.busy
    case.console.note(f"cost table: of the target {target.name}, in {costs.serving.runtime}{busy}")
    if about.tokenization:
        case.console.note(
            f"tokenization is not part of a target: the {about.tokenization:.2f} ms that it takes here are added"
        )

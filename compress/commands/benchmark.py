"""`compress benchmark`: models timed in turn, without data."""

from __future__ import annotations

from collections.abc import Sequence

from compress.console import Console
from compress.contracts import Measurement, RunOptions
from compress.data.tables.random_rows import mixed_lengths
from compress.measure.labelled import model_label, print_measured
from compress.measure.models import CostPlan, Measured, Subject, cost_ratios, measure_cost
from compress.modelfolder.resolve import resolve
from compress.predict.fastest import fastest, named, short_rows
from compress.predict.predictor import Predictor, fixed_batch
from compress.stages.shared.timing import timed_length


def benchmark(
    models: Sequence[str], batch: int, length: int | None, repeats: int, options: RunOptions
) -> list[Measured]:
    """Time models in turn, without data: random tokens, a mix of lengths up to `length` for throughput.

    length: in tokens; None: 128, or the most that every model has positions for. Raises UserError for a length that is
    more than that.
    """
    console = Console(quiet=options.quiet, json=options.json)
    folders = [resolve(m) for m in models]
    precision = "bf16" if options.precision == "bf16" else "fp32"
    predictors = [Predictor(f, device=options.device, precision=precision, runtime=named(options)) for f in folders]
    length = timed_length(zip(models, (p.max_length for p in predictors), strict=True), length)
    if options.runtime == "auto":
        predictors = [_fastest(p, batch, length, console) for p in predictors]
    console.note(f"timing {', '.join(model_label(f) for f in folders)}, {length} tokens")
    samples = [mixed_lengths(p.config.vocabulary, length) for p in predictors]
    plan = CostPlan(batch=batch, length=length, repeats=repeats)
    costs = measure_cost(predictors, samples, plan, console.slow_progress)
    measured = []
    for i, (folder, cost) in enumerate(zip(folders, costs, strict=True)):
        values = {**cost.measurement.values, **(cost_ratios(cost, costs[0]) if i else {})}
        role = "student" if i else "teacher"
        measured.append(
            Measured(Subject(model_label(folder), folder, role), Measurement(values, cost.measurement.context))
        )
    print_measured(console, measured)
    return measured


def _fastest(predictor: Predictor, batch: int, length: int, console: Console) -> Predictor:
    """In the runtime that answers sequences of this length soonest."""
    console.note(f"timing each runtime with {model_label(predictor.folder)}")
    timed = fixed_batch(predictor.config, batch, length)
    return fastest(predictor, short_rows(predictor), [timed], f"{batch} x {length} tokens", console)

"""`compress benchmark`: models timed in turn, without data."""

from __future__ import annotations

from collections.abc import Sequence

from compress.console import Console
from compress.contracts import Measurement, RunOptions
from compress.data.tables.random_rows import draw_mixed_rows
from compress.measure.labelled import print_measured
from compress.measure.models import CostPlan, MeasuredModel, Subject, cost_ratios, measure_cost
from compress.modelfolder.resolve import label_models, resolve
from compress.predict.fastest import fastest_for_shape, get_requested_runtime
from compress.predict.predictor import Predictor
from compress.stages.shared.timing import choose_length


def benchmark(
    models: Sequence[str], batch: int, length: int | None, repeats: int, options: RunOptions
) -> list[MeasuredModel]:
    """Time models in turn, without data: random tokens, a mix of lengths up to `length` for throughput.

    length: in tokens; None: 128, or the most that every model has positions for. Raises UserError for a length that is
    more than that.
    """
    console = Console(quiet=options.quiet, json=options.json)
    folders = [resolve(m) for m in models]
    labels = label_models(folders)
    precision = "bf16" if options.precision == "bf16" else "fp32"
    predictors = [
        Predictor(f, device=options.device, precision=precision, runtime=get_requested_runtime(options))
        for f in folders
    ]
    length = choose_length(zip(models, (p.max_length for p in predictors), strict=True), length)
    if options.runtime == "auto":
        named = zip(predictors, labels, strict=True)
        predictors = [fastest_for_shape(p, label, batch, length, console) for p, label in named]
    console.note(f"timing {', '.join(labels)}, {length} tokens")
    samples = [draw_mixed_rows(p.config.vocabulary, length) for p in predictors]
    plan = CostPlan(batch=batch, length=length, repeats=repeats)
    costs = measure_cost(predictors, samples, plan, console.slow_progress)
    measured = []
    for i, (folder, label, cost) in enumerate(zip(folders, labels, costs, strict=True)):
        values = {**cost.measurement.values, **(cost_ratios(cost, costs[0]) if i else {})}
        role = "student" if i else "teacher"
        measured.append(MeasuredModel(Subject(label, folder, role), Measurement(values, cost.measurement.context)))
    print_measured(console, measured)
    return measured

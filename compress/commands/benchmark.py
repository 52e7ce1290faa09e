"""`compress benchmark`: models timed in turn, on texts of data or on random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import Measurement, RunOptions
from compress.data.batches.examples import Examples
from compress.data.tables.random_rows import draw_mixed_rows
from compress.errors import UserError
from compress.measure.cost import CostPlan, cost_ratios, measure_cost, sample_examples, sample_rows
from compress.measure.labelled import open_labelled, print_measured
from compress.measure.measured_model import MeasuredModel
from compress.measure.subject import Subject
from compress.modelfolder.cascade import inspect
from compress.modelfolder.names import label_models
from compress.modelfolder.resolve import resolve
from compress.predict.cascade import open_predictor
from compress.predict.fastest import fastest_for_shape, fastest_for_texts, get_requested_runtime
from compress.predict.predictor import Predictor
from compress.predict.real_texts import choose_calls, require_fixed_costs, sample_texts
from compress.stages.shared.labelled_data import settings_for
from compress.stages.shared.task_head import check_same_task
from compress.stages.shared.timing import choose_length


def benchmark(
    models: Sequence[str], batch: int, length: int | None, repeats: int, split: str | None, options: RunOptions
) -> list[MeasuredModel]:
    """Time models in turn. With data: on its texts. Without: on random tokens, for throughput a mix of lengths up to
    `length`.

    length: in tokens; None without data: 128, or the most that every model has positions for.  split: of the data;
    None: test. Raises UserError for a length that is more than that, or given together with data.
    """
    console = Console(quiet=options.quiet, json=options.json)
    folders = [resolve(m) for m in models]
    labels = label_models(folders)
    if _has_data(length, split, options):
        predictors, samples, plan = _on_texts(folders, labels, split or "test", batch, repeats, options, console)
    else:
        predictors, samples, plan = _on_random_tokens(models, folders, labels, batch, length, repeats, options, console)
    costs = measure_cost(predictors, samples, plan, console.slow_progress)
    measured = []
    for i, (folder, label, cost) in enumerate(zip(folders, labels, costs, strict=True)):
        values = {**cost.measurement.values, **(cost_ratios(cost, costs[0]) if i else {})}
        role = "student" if i else "teacher"
        measured.append(MeasuredModel(Subject(label, folder, role), Measurement(values, cost.measurement.context)))
    print_measured(console, measured)
    return measured


def _has_data(length: int | None, split: str | None, options: RunOptions) -> bool:
    """Whether texts are timed. Raises UserError for options that contradict that, or need it."""
    if any(o.path == "data.source" for o in options.overrides):
        if length is not None:
            do = "remove --data to time that many tokens, or remove --length to time texts of the data"
            raise UserError("cannot be combined with --data, which has lengths of its own", where="--length", do=do)
        return True
    flags = [*(["--split"] if split else []), *(o.origin for o in options.overrides if o.path.startswith("data."))]
    if flags:
        raise UserError("only applies with --data", where=flags[0], do="add --data DATA, or remove it")
    return False


Timed = tuple[list[Predictor], list[Examples], CostPlan]
"""Models, rows of each for throughput, and how they are timed."""


def _on_texts(
    folders: Sequence[Path], labels: Sequence[str], split: str, batch: int, repeats: int, options: RunOptions,
    console: Console,
) -> Timed:  # fmt: skip
    recipe, table = open_labelled(inspect(folders[0]), options, console, bare=True, measured=split)
    assert recipe.data is not None
    rows, read = table.split(split), {"max_length": recipe.data.max_length}
    predictors = [
        _predictor(folder, options, task=table.task, settings=settings_for(recipe, table)) for folder in folders
    ]
    for p in predictors:
        check_same_task(p.head, p.label_names, table.task, str(p.folder))
    data = f"{table.display_name}/{split}"
    calls = choose_calls(folders)
    texts = sample_texts(rows, data=data, digest=table.measured_fingerprint, batch=batch, calls=calls, **read)
    if options.runtime == "auto":
        named = zip(predictors, labels, strict=True)
        predictors = [fastest_for_texts(p, label, texts, console) for p, label in named]
    console.note(f"timing {', '.join(labels)} on texts of {data}")
    plan = CostPlan(batch=batch, texts=texts, repeats=repeats)
    few = sample_rows(rows, plan.throughput_rows)
    encoded = [p.encode_rows(few, **read) for p in predictors]
    alone = predictors[0].task.label_free
    return predictors, sample_examples(encoded, plan.throughput_rows, single_texts=alone), plan


def _on_random_tokens(
    models: Sequence[str], folders: Sequence[Path], labels: Sequence[str], batch: int, length: int | None, repeats: int,
    options: RunOptions, console: Console,
) -> Timed:  # fmt: skip
    require_fixed_costs(folders)
    predictors = [_predictor(folder, options) for folder in folders]
    length = choose_length(zip(models, (p.max_length for p in predictors), strict=True), length)
    if options.runtime == "auto":
        named = zip(predictors, labels, strict=True)
        predictors = [fastest_for_shape(p, label, batch, length, console) for p, label in named]
    console.note(f"timing {', '.join(labels)}, {length} tokens")
    samples = [draw_mixed_rows(p.config.vocabulary, length) for p in predictors]
    return predictors, samples, CostPlan(batch=batch, length=length, repeats=repeats)


def _predictor(folder: Path, options: RunOptions, **how: Any) -> Predictor:
    runtime = get_requested_runtime(options)
    return open_predictor(folder, device=options.device, precision=options.precision, runtime=runtime, **how)

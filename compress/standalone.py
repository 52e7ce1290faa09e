"""`compress evaluate`, `benchmark` and `calibrate`: measuring without a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress.calibration import FEWEST_ROWS, FILE, calibration, chart
from compress.console import Console
from compress.contracts import Measurement, RunOptions
from compress.data.grouping import columns_of
from compress.data.random_rows import mixed_lengths
from compress.data.table import Table
from compress.data.tasks import classification
from compress.durable import atomic
from compress.errors import UserError
from compress.fastest import fastest, named, short_rows
from compress.measure import CostPlan, Measured, Subject, cost_ratios, measure, measure_cost, require_same_labels
from compress.modelfolder import folder as modelfolder
from compress.modelnames import resolve
from compress.predictor import Predictor, fixed_batch
from compress.recipe import Recipe, load_recipe
from compress.report import SLICES_NOTE, churn_table, comparison, conditions, slices_sentence, slices_table
from compress.robustness import Curve, check_disturbance, curve, difference, free_folder, tell
from compress.runfolder import new_output
from compress.stages import check_same_task, open_table_of, settings_for
from compress.timing import timed_length
from evaluation.quality.calibration import calibration_error, fit_temperature, negative_log_likelihood

BOOTSTRAP = 200


def evaluate(
    model: str,
    against: str | None,
    split: str,
    bootstrap: int,
    options: RunOptions,
    *,
    slices: bool = False,
    sliced: Sequence[str] | None = None,
) -> list[Measured]:
    """Measure one model, or two row by row, on a split of labelled data, and print the table.

    slices: also by groups of rows.  sliced: which (`data.grouping.groups`).
    """
    written = {"--output": options.output, "--tracking-uri": options.tracking_uri, "--experiment": options.experiment}
    for flag, value in written.items():
        if value is not None:
            raise UserError("nothing is written", where=flag, do="give it with --robustness")
    console = Console(quiet=options.quiet, json=options.json)
    measured = measure_models([model], against, split, bootstrap, options, console, sliced)
    _print(console, measured)
    for m in measured:
        if m.churn and not options.json:
            console.table("", *churn_table(m.churn))
    for m in measured if slices and not options.json else ():
        if m.subject.role == "student" or not against:
            console.table("", *slices_table(m.slices, m.metric or ""))
            for line in [*slices_sentence(m.slices), SLICES_NOTE]:
                console.result(line)
    return measured


def measure_models(
    models: Sequence[str],
    against: str | None,
    split: str,
    bootstrap: int,
    options: RunOptions,
    console: Console,
    sliced: Sequence[str] | None = None,
) -> list[Measured]:
    """Measure models on a split of the labelled data that the options name; `against`, if given, comes first."""
    folders = list(dict.fromkeys(resolve(name, options.tracking_uri) for name in models))
    alone = against is None and len(folders) == 1
    subjects = [Subject(_name(f), f, "teacher" if alone else "student") for f in folders]
    if against:
        parent = resolve(against, options.tracking_uri)
        kept = [s for s in subjects if len(folders) == 1 or s.folder.resolve() != parent.resolve()]
        subjects = [Subject(_name(parent), parent, "teacher"), *kept]
    info = modelfolder.inspect(folders[0])
    recipe, table = labelled(info, options, console, columns_of(sliced or ()))
    assert recipe.data is not None
    return measure(
        subjects,
        table.split(split),
        task=table.task,
        dataset=f"{table.called}/{split}",
        digest=table.fingerprint,
        max_length=recipe.data.max_length,
        cost=CostPlan(),
        bootstrap=bootstrap,
        device=options.device,
        precision="bf16" if options.precision == "bf16" else "fp32",
        settings=settings_for(recipe, table),
        held=None if split == "validation" else table.splits.get("validation"),
        runtime=named(options),
        sliced=sliced,
        say=console.note,
    )


def evaluate_robustness(
    model: str, against: str | None, split: str, bootstrap: int, disturbance: str, options: RunOptions
) -> list[Curve]:
    """Quality of one model, or of two on the same rows, while the rows are disturbed more and more."""
    check_disturbance(disturbance)
    folders = [resolve(name, options.tracking_uri) for name in (model, against) if name is not None]
    output = free_folder(options.output, _name(folders[0]), disturbance)
    console = Console(quiet=options.quiet, json=options.json)
    info = modelfolder.inspect(folders[0])
    recipe, table = labelled(info, options, console)
    assert recipe.data is not None
    precision = "bf16" if options.precision == "bf16" else "fp32"
    how: dict[str, Any] = {"device": options.device, "precision": precision, "runtime": named(options)}
    how["settings"] = settings_for(recipe, table)
    predictors = [Predictor(f, task=table.task, **how) for f in folders]
    for folder, predictor in zip(folders, predictors, strict=True):
        check_same_task(predictor.head, predictor.label_names, table.task, str(folder))
    require_same_labels([Subject(_name(f), f) for f in folders], predictors)
    rows = table.split(split)
    curves = []
    for folder, predictor in zip(folders, predictors, strict=True):
        console.note(f"scoring {_name(folder)} on {len(rows)} rows, disturbed more and more")
        curves.append(curve(_name(folder), predictor, rows, disturbance, recipe.data.max_length, bootstrap))
    tell(console, curves, difference(curves, len(rows), bootstrap), table, split, disturbance, output, options)
    return curves


def calibrate(model: str, split: str, options: RunOptions) -> float:
    """Write `options.output`: the model with the temperature that makes its probabilities fit one split.

    Told with the calibration error on the test rows before and after; no answer changes. Raises UserError for kinds of
    task whose answers have no such probabilities, for too few rows, and when there is no output or it exists already.
    """
    output = new_output(options)
    console = Console(quiet=options.quiet, json=options.json)
    folder = resolve(model)
    info = modelfolder.inspect(folder)
    recipe, table = labelled(info, options, console)
    predictor = Predictor(folder, device=options.device, task=table.task)
    check_same_task(predictor.head, predictor.label_names, table.task, str(folder))
    if "temperature" not in predictor.task.settings:
        raise UserError(f"{table.task} has no temperature", where=str(folder), do="calibrate a model of single labels")
    assert recipe.data is not None
    logits, gold = [], []
    for name in (split, "test"):
        rows = table.split(name)
        if len(rows) < FEWEST_ROWS:
            raise UserError(f"{len(rows)} rows of {name}", where="--data", why=f"at least {FEWEST_ROWS} are needed")
        examples = predictor.encode_rows(rows, max_length=recipe.data.max_length)
        assert isinstance(predictor.task, classification.Task)
        logits.append(predictor.task.pooled(predictor.logits(examples), examples))
        gold.append(np.asarray(rows.labels))
    temperature = fit_temperature(logits[0], gold[0])
    told = {}
    for name, t in (("before", _temperature(info)), ("after", temperature)):
        error = calibration_error(logits[1] / t, gold[1])(np.ones((1, len(gold[1]))))[0]
        told[name] = {
            "temperature": t,
            "calibration_error": float(error),
            "negative_log_likelihood": negative_log_likelihood(logits[1], gold[1], t),
        }
    loaded = modelfolder.load_model(folder)
    parent = modelfolder.Parent(role="base", name=folder.name, fingerprint=modelfolder.fingerprint(folder))
    settings = {**loaded.meta.task_settings, "temperature": temperature}
    note = f"probabilities calibrated on {len(gold[0]):,} rows of {table.called}/{split}: temperature {temperature:.3f}"
    meta = modelfolder.FolderMeta(
        family=loaded.family, task=table.task, label_names=loaded.meta.label_names, task_settings=settings,
        method=loaded.meta.method, max_length=loaded.meta.max_length, lineage=(parent,), data=loaded.meta.data,
        language=loaded.meta.language, notes=(*loaded.meta.notes, note),
    )  # fmt: skip
    modelfolder.save_model(output, loaded.model, tokenizer_files=loaded.tokenizer_files, meta=meta)
    columns = (f"on {len(gold[1]):,} rows of {table.called}/test", *told)
    shown = [[f"{row[key]:.4f}" for row in told.values()] for key in next(iter(told.values()))]
    names = ("temperature", "calibration error", "negative log-likelihood")
    console.table("", columns, [(name, *cells) for name, cells in zip(names, shown, strict=True)])
    plot = output.with_name(f"{output.name}-{FILE}")
    found = calibration(logits[1], gold[1], _temperature(info), (logits[0], gold[0]), bootstrap=BOOTSTRAP)
    title = f"do probabilities hold? {table.called}/test"
    atomic.write_text(plot, chart(title, {folder.name: found}, scaled=folder.name))
    console.result(f"wrote {output}; its answers are the same, their probabilities are not")
    console.result(f"plot     {plot}")
    console.document({"folder": str(output), "plot": str(plot), "fitted_on": split, **told})
    return temperature


def _temperature(info: modelfolder.FolderInfo) -> float:
    """What the folder divides its logits by."""
    return float(info.meta.task_settings.get("temperature") or 1.0)


def labelled(
    info: modelfolder.FolderInfo,
    options: RunOptions,
    console: Console,
    others: Sequence[str] = (),
    *,
    bare: bool = False,
) -> tuple[Recipe, Table]:
    """The labelled data that the options name, read as the model needs it; what was noticed is told. others: columns
    that rows are told apart by.  bare: there may be no labels."""
    recipe = load_recipe({"name": "evaluate", "data": _data_of(info, options), "stages": [_UNUSED]}, options.overrides)
    table = open_table_of(recipe, info, others, bare=bare)
    for note in table.notes:
        console.note(note)
    return recipe, table


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
    console.note(f"timing {', '.join(_name(f) for f in folders)}, {length} tokens")
    samples = [mixed_lengths(p.config.vocabulary, length) for p in predictors]
    costs = measure_cost(predictors, samples, CostPlan(batch=batch, length=length, repeats=repeats))
    measured = []
    for i, (folder, cost) in enumerate(zip(folders, costs, strict=True)):
        values = dict(cost.values) | (cost_ratios(cost.values, costs[0].values) if i else {})
        role = "student" if i else "teacher"
        measured.append(Measured(Subject(_name(folder), folder, role), Measurement(values, cost.context)))
    _print(console, measured)
    return measured


def _fastest(predictor: Predictor, batch: int, length: int, console: Console) -> Predictor:
    """In the runtime that answers sequences of this length soonest."""
    console.note(f"trying the runtimes on {_name(predictor.folder)}")
    timed = fixed_batch(predictor.config, batch, length)
    return fastest(predictor, short_rows(predictor), [timed], f"{batch} x {length} tokens", console)


def _print(console: Console, measured: Sequence[Measured]) -> None:
    columns, rows = comparison([m.subject.name for m in measured], [m.measurement for m in measured])
    console.table("", columns, rows)
    for line in conditions(measured[-1].measurement):
        console.result(line)
    console.document({"models": [m.as_json() for m in measured]})


def _data_of(info: modelfolder.FolderInfo, options: RunOptions) -> dict[str, object]:
    """The data block: from --data, with the length that the model was trained on."""
    if not any(o.path == "data.source" for o in options.overrides):
        raise UserError("on which data?", where="--data", do="give an embedded set, a file or a folder")
    length = info.meta.max_length or min(128, info.config.max_positions)
    return {"source": "given by --data", "max_length": length}


def _name(folder: Path) -> str:
    """`teacher/model` tells more than `model`."""
    resolved = folder.resolve()
    return f"{resolved.parent.name}/{resolved.name}" if resolved.name in ("model", "student") else resolved.name


_UNUSED = {"kind": "finetune", "training": {"steps": 1}}  # a recipe needs a stage; measuring runs none

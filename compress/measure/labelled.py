"""Models measured on the labelled data that the flags of a command name, without a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.data.tables.groups import columns_of
from compress.data.tables.label_order import is_unnamed
from compress.data.tables.table import Table
from compress.errors import UserError
from compress.measure.cost import CostPlan
from compress.measure.measured_model import MeasuredModel
from compress.measure.models import measure
from compress.measure.subject import Subject
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.cascade import inspect
from compress.modelfolder.meta import is_cascade
from compress.modelfolder.names import label_models
from compress.modelfolder.resolve import resolve
from compress.onnx.model_file import RECORD
from compress.predict.fastest import fastest_for_shape, fastest_for_texts, get_requested_runtime
from compress.predict.real_texts import choose_calls, require_fixed_costs, sample_texts
from compress.predict.text_vectors import make_text_vectors
from compress.recipe import Recipe, load_recipe
from compress.report.rows import (
    GROUPS_NOTE,
    comparison,
    conditions,
    explain_no_figures,
    groups_sentence,
    groups_table,
    has_figures,
    slices_footnote,
    slices_sentence,
    slices_table,
)
from compress.stages.shared.labelled_data import open_table_of, settings_for
from compress.stages.shared.timing import choose_length


def measure_models(
    models: Sequence[str],
    against: str | None,
    split: str,
    bootstrap: int,
    options: RunOptions,
    console: Console,
    sliced: Sequence[str] | None = None,
    *,
    group_column: str | None = None,
    as_deployed: bool = False,
    length: int | None = None,
    timed: bool = True,
) -> list[MeasuredModel]:
    """Measure models on a split of the labelled data that the options name; `against`, if given, comes first.

    group_column: of the groups that are compared with each other.
    as_deployed: where no runtime is named, a float model with an ONNX file is timed in the fastest one of this machine.
    length: latency is measured on sequences of so many tokens; None: on texts of the data.
    timed: without it, quality, size and operations only.
    """
    folders = list(dict.fromkeys(resolve(name, options.tracking_uri) for name in models))
    alone = against is None and len(folders) == 1
    roles = ["teacher" if alone else "student"] * len(folders)
    places = folders
    if against:
        parent = resolve(against, options.tracking_uri)
        kept = [f for f in folders if len(folders) == 1 or f.resolve() != parent.resolve()]
        places, roles = [parent, *kept], ["teacher", *["student"] * len(kept)]
    named = zip(label_models(places), places, roles, strict=True)
    subjects = [Subject(label, place, role) for label, place, role in named]
    info = inspect_with_names(folders[0], places)
    if length is not None:
        require_fixed_costs(places, do="remove --length")
        choose_length([(s.name, inspect(s.folder).config.max_positions) for s in subjects], length)
    others = columns_of(sliced or ())
    recipe, table = open_labelled(info, options, console, others, measured=split, group_column=group_column)
    assert recipe.data is not None
    rows, dataset = table.split(split), f"{table.display_name}/{split}"
    read: dict[str, Any] = {"digest": table.measured_fingerprint, "max_length": recipe.data.max_length}
    texts = None
    if length is None:
        texts = sample_texts(rows, data=dataset, **read, calls=choose_calls(places))
    cost = CostPlan(length=length, texts=texts, timed=timed)
    if as_deployed and options.runtime is None:
        how: dict[str, Any] = {"task": table.task, "settings": settings_for(recipe, table)}
        subjects = [_in_fastest(subject, cost, options, console, **how) for subject in subjects]
    return measure(
        subjects,
        rows,
        task=table.task,
        label_names=table.label_names,
        dataset=dataset,
        **read,
        cost=cost,
        bootstrap=bootstrap,
        device=options.device,
        precision=options.precision,
        settings=settings_for(recipe, table),
        held=None if split == "validation" else table.splits.get("validation"),
        runtime=get_requested_runtime(options),
        sliced=sliced,
        group_column=group_column,
        say=console.note,
        watch=console.slow_progress,
    )


def _in_fastest(subject: Subject, cost: CostPlan, options: RunOptions, console: Console, **how: Any) -> Subject:
    """With the runtime that answers soonest; as it is where its folder leaves no choice. how: as of `Predictor`."""
    if is_cascade(subject.folder):
        return subject
    info = modelfolder.inspect(subject.folder)
    if info.config.quantization is not None or not (subject.folder / RECORD).is_file():
        return subject
    predictor = subject.predictor(device=options.device, precision=options.precision, **how)
    if cost.texts is not None:
        return replace(subject, runtime=fastest_for_texts(predictor, subject.name, cost.texts, console).runtime)
    assert cost.length is not None
    return replace(
        subject, runtime=fastest_for_shape(predictor, subject.name, cost.batch, cost.length, console).runtime
    )


def inspect_with_names(folder: Path, others: Sequence[Path]) -> modelfolder.FolderInfo:
    """What a folder holds; where it has no names for its labels (LABEL_0 …), with those of the first of the others that
    has some, so that data are read in that order."""
    info = inspect(folder)
    if not is_unnamed(info.label_names):
        return info
    names = next((names for other in others if not is_unnamed(names := inspect(other).label_names)), ())
    return replace(info, label_names=names) if len(names) == len(info.label_names) else info


def open_labelled(
    info: modelfolder.FolderInfo,
    options: RunOptions,
    console: Console,
    others: Sequence[str] = (),
    *,
    bare: bool = False,
    measured: str | None = None,
    group_column: str | None = None,
) -> tuple[Recipe, Table]:
    """The labelled data that the options name, read as the model needs it; what was noticed is told. others: columns
    that rows are told apart by.  bare: there may be no labels.  measured: a split that is enough.
    group_column: of the groups that are compared with each other."""
    content = {"name": "evaluate", "data": _data_of(info, options), "stages": [_UNUSED]}
    compared = Override("evaluation.group_column", group_column, "--group-column")
    recipe = load_recipe(content, (*options.overrides, *([compared] if group_column is not None else [])))
    vectors = lambda: make_text_vectors(info.path, options.device, console.progress)  # noqa: E731
    table = open_table_of(recipe, info, others, bare=bare, measured=measured, vectors=vectors)
    for note in table.notes:
        console.note(note)
    return recipe, table


def print_measured(console: Console, measured: Sequence[MeasuredModel]) -> None:
    """The table of models of which the first is the parent of the others, what they were measured on, and the document
    of --json."""
    found = [m.measurement for m in measured]
    console.table("", *comparison([m.subject.name for m in measured], found, "parent"))
    for line in conditions(found[-1], found):
        console.result(line)
    console.document({"models": [m.as_json() for m in measured], "reference": "parent"})


def print_slices(console: Console, measured: Sequence[MeasuredModel]) -> None:
    """Each model but the parent of others on groups of rows; why, where none of the groups has a figure."""
    told = [m for m in measured if m.subject.role == "student"] or measured
    for m in told:
        if not has_figures(m.slices):
            console.result(explain_no_figures(m.subject.name, m.slices))
            continue
        console.table(m.subject.name if len(measured) > 1 else "", *slices_table(m.slices, m.metric or ""))
        for line in slices_sentence(m.slices, m.metric or ""):
            console.result(line)
    found = [one for m in told for one in m.slices]
    if has_figures(found):
        console.result(slices_footnote(found))


def print_groups(console: Console, measured: Sequence[MeasuredModel]) -> None:
    """Each model on the groups of one column, and the gaps between them; nothing where no column was requested."""
    told = [m for m in measured if m.groups]
    for m in told:
        if has_figures(m.groups):
            console.table(m.subject.name if len(measured) > 1 else "", *groups_table(m.groups, m.metric or ""))
        if m.gap is not None:
            for line in groups_sentence(m.groups, m.metric or ""):
                console.result(line)
    # why there is no gap is true of the rows, not of one model
    unknown = [groups_sentence(m.groups, m.metric or "") for m in told if m.gap is None]
    for line in dict.fromkeys(line for lines in unknown for line in lines):
        console.result(line)
    if told:
        console.result(GROUPS_NOTE)


def _data_of(info: modelfolder.FolderInfo, options: RunOptions) -> dict[str, object]:
    """The data block: from --data, with the length that the model reads."""
    if not any(o.path == "data.source" for o in options.overrides):
        raise UserError(
            "data is required: labelled rows, or texts for an embedding model",
            where="--data",
            do="give a built-in dataset, a file or a folder",
        )
    return {"source": "given by --data", "max_length": info.longest_text}


_UNUSED = {"kind": "finetune", "training": {"steps": 1}}  # a recipe needs a stage; measuring runs none

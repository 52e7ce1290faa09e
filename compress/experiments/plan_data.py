"""`compress distill --plan-data`: the rows that each source would add to the training, with examples; nothing is
trained and no run folder is made."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, cast

from compress.console import Console
from compress.contracts import RunOptions
from compress.data.tables.table import Rows, Table, spread_places
from compress.errors import UserError, printable
from compress.recipe import Recipe
from compress.run import Run
from compress.run.teachers import Teachers
from compress.stages.distill.augmentation import NoCopyError, augment_rows, model_folder, settle_augmentation
from compress.stages.distill.augmentation_spec import AugmentationSpec
from compress.stages.distill.spec import Spec
from compress.stages.shared.stage import StageContext
from compress.stages.shared.unlabelled_rows import find_unlabelled_rows

EXAMPLES = 3
WIDTH = 160  # characters of an example


def plan_data(
    recipe: Recipe, options: RunOptions, console: Console, *, verb: str, general_teacher: Path | None = None
) -> None:
    """Print the labelled rows, the unlabelled ones, and copies by the recipe's augmentation, or by spans of other rows
    where it has none. A teacher recipe is run where the augmentation needs its model.

    Raises UserError for what is wrong with the data, and for a recipe that does not train on labelled rows.
    """
    inputs = {} if general_teacher is None else {"general_teacher": general_teacher}
    run = Run(recipe, options, console, verb, inputs)
    place = next((i for i in run.selection.indices if getattr(run.selection.stage(i), "level", "") != "general"), None)
    if place is None:
        raise UserError("no stage trains on labelled rows", where="--plan-data", do="use recipe distilbert-task")
    run.sources.open()
    table = run.sources.table
    parts = [_part("training rows with labels", len(table.split("train")), table.split("train"))]
    stage, data = run.selection.stage(place), run.selection.recipe.data
    adds_text = data is not None and data.adds_text
    if "unlabelled" in table.splits and (getattr(stage, "use_unlabelled", False) or adds_text):
        pool, most = _find_text(run, place, table), None if data is None else data.unlabelled_rows
        parts.append(_part("rows without labels", len(pool) if most is None else min(most, len(pool)), pool))
    named: AugmentationSpec | None = getattr(stage, "augmentation", None)
    asked = named and settle_augmentation(cast(Spec, stage), table, _context(run, place, Path())).augmentation
    spec = asked or AugmentationSpec(method="mix")
    rows = table.split("train")
    few = rows.take(spread_places(len(rows), EXAMPLES))
    part = dataclasses.replace(table, splits={**table.splits, "train": few})
    title = f"copies by {spec.method}, at most {spec.copies} of each text" + ("" if asked else " (add --augment mix)")
    try:
        parts.append(_part(title, spec.copies * len(rows), _augment(run, place, spec, part)))
    except NoCopyError:
        if asked and named and named.method != "auto":
            raise
    for one in parts:
        console.result(f"{one['source']}: {one['rows']:,}")
        for text in one["examples"]:
            console.result(f"  {text}")
    console.document({"data": table.name, "sources": parts})


def _find_text(run: Run, place: int, table: Table) -> Rows:
    """The rows without labels that the stage would train on. Says how many are left out."""
    with tempfile.TemporaryDirectory() as folder:
        return find_unlabelled_rows(table, _context(run, place, Path(folder)))


def _context(run: Run, place: int, folder: Path) -> StageContext:
    """What a stage knows before any teacher is there."""
    return run.contexts.of(run.selection.stage(place), folder, run.contexts.get_start(), Teachers())


def _augment(run: Run, place: int, spec: AugmentationSpec, table: Table) -> Rows:
    """Copies of a few rows."""
    with tempfile.TemporaryDirectory() as folder:
        if spec.method == "mix":
            return augment_rows(spec, table, _context(run, place, Path(folder)), None)
        context = run.workplace(place, Path(folder))
        return augment_rows(spec, table, context, model_folder(spec, context.teacher, context.general_teacher))


def _part(source: str, count: int, rows: Rows) -> dict[str, Any]:
    places = spread_places(len(rows), EXAMPLES)
    found = [row for part in rows.take(places).contents() for row in part]
    texts = [printable(" | ".join(text.replace("\x1e", " ") for text in row), WIDTH) for row in found]
    return {"source": source, "rows": count, "examples": texts}

"""Distil a teacher into a smaller student, and measure both."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._student import student_flags
from compress.cli._verbs import run_stages
from compress.cli.options import Command, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions
    from compress.recipe import LoadedRecipe


DEFAULT = "distilbert"


@click.command(cls=Command)
@shared("recipe", "teacher", "data", "compute", "onnx", "output", "store", "experiment")
@click.option(
    "--general-teacher",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Pretrained encoder with a masked-LM head, for recipes that train on a corpus first.",
)
@click.option(
    "--seeds",
    type=click.IntRange(2, 100),
    help="Repeat the run with N seeds, each in its own folder; report mean and spread.",
)
@click.option(
    "--teacher-cache",
    metavar="FOLDER",
    help="Cache teacher outputs in this folder: later epochs, seeds and students read them.",
)
@click.option("--no-control", is_flag=True, help="Skip the control: the same student trained on hard labels only.")
@click.option(
    "--check",
    is_flag=True,
    help="Overfit 64 examples (about a minute) as a sanity check; no model is saved.",
)
@student_flags
def command(
    options: RunOptions,
    general_teacher: Path | None,
    teacher_cache: str | None,
    no_control: bool,
    seeds: int | None,
    check: bool,
) -> None:
    """Distil a teacher into a smaller student, and measure both.

    \b
      compress distill --recipe distilbert-task --teacher FOLDER --data FILE_OR_FOLDER

    Without options it runs the recipe `distilbert`, which first trains a teacher (once) on generated data.

    It prints a table of teacher, student and control (the same student trained on hard labels only), the student's
    folder, and commands to use it and to open the MLflow page. Likely training problems are reported as findings,
    before step 1 and during training.

    If a student does not learn:

    \b
      compress distill --recipe distilbert-task --teacher FOLDER --data FILE_OR_FOLDER --check

    trains it on 64 examples and reports which objective does not decrease, the likely cause, and the estimated time of
    the full run. Exit code 0: it learns them; 3: it does not.
    """
    if no_control:
        from compress.contracts import Override

        skip = Override("stages.*.control", False, "--no-control", required=False)
        options = dataclasses.replace(options, overrides=(*options.overrides, skip))

    def load() -> LoadedRecipe:
        return _load(options, teacher_cache)

    run_stages(options, load, "distill", seeds=seeds, check=check, general_teacher=general_teacher)


def _load(options: RunOptions, cache: str | None) -> LoadedRecipe:
    """The recipe; every distill stage caches its teacher's outputs in the folder `cache`."""
    from compress.contracts import Override
    from compress.recipe import LoadedRecipe

    loaded = LoadedRecipe.read(options.recipe or DEFAULT)
    places = [] if cache is None else [i for i, s in enumerate(loaded.recipe.stages) if s.kind == "distill"]
    caches = [Override(f"stages.{i}.cache.path", cache, f"--teacher-cache {cache}") for i in places]
    return loaded.with_overrides((*caches, *options.overrides))  # --set has the last word

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


DEFAULT = "distilbert"


@click.command(cls=Command)
@shared("recipe", "teacher", "data", "compute", "onnx", "output", "store", "experiment")
@click.option(
    "--general-teacher",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A pretrained encoder with a masked-LM head, for recipes that start on a corpus.",
)
@click.option(
    "--seeds",
    type=click.IntRange(2, 100),
    help="Repeat the run with so many seeds, each in a folder of its own, and tell mean and spread.",
)
@click.option(
    "--teacher-cache",
    metavar="FOLDER",
    help="Ask the teacher once for each row and keep its answers here: later epochs, seeds and students read them.",
)
@click.option("--no-control", is_flag=True, help="Leave out the same student on hard labels alone.")
@click.option(
    "--check",
    is_flag=True,
    help="Only try, for about a minute, whether the student can learn 64 examples by heart; nothing is kept.",
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

    Without flags: the recipe `distilbert`, whose teacher is made first (once) from generated data. With a model of
    your own:

    \b
      compress distill --recipe distilbert-task --teacher FOLDER --data FILE_OR_FOLDER

    Ends with a table of teacher, student and control (the same student on hard labels alone), the student's folder,
    and the lines that use it and that open the MLflow page. What may keep the student from learning is told as
    findings, before the first step and while it trains.

    When a student does not learn:

    \b
      compress distill --recipe distilbert-task --teacher FOLDER --data FILE_OR_FOLDER --check

    trains it on 64 examples and tells which objective does not fall, what is wrong, and how long the whole run would
    take. Exit code 0: it learns them; 3: it does not.
    """
    if no_control:
        from compress.contracts import Override

        skip = Override("stages.*.control", False, "--no-control", required=False)
        options = dataclasses.replace(options, overrides=(*options.overrides, skip))
    if teacher_cache is not None:
        options = _with_cache(options, teacher_cache)
    run_stages(options, DEFAULT, "distill", seeds=seeds, check=check, general_teacher=general_teacher)


def _with_cache(options: RunOptions, folder: str) -> RunOptions:
    """Every stage that distils keeps its teacher's answers in `folder`."""
    from compress.contracts import Override
    from compress.recipe import load_recipe

    places = [i for i, s in enumerate(load_recipe(options.recipe or DEFAULT).stages) if s.kind == "distill"]
    caches = [Override(f"stages.{i}.cache.path", folder, f"--teacher-cache {folder}") for i in places]
    return dataclasses.replace(options, overrides=(*caches, *options.overrides))  # --set has the last word

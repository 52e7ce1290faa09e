"""Distil a teacher into a smaller student, and measure both."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._student import student_flags
from compress.cli._verbs import run_stages
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@shared("recipe", "teacher", "data", "compute", "output", "store", "experiment")
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
@click.option("--no-control", is_flag=True, help="Leave out the same student on hard labels alone.")
@click.option(
    "--check",
    is_flag=True,
    help="Only try, for about a minute, whether the student can learn 64 examples by heart; nothing is kept.",
)
@student_flags
def command(
    options: RunOptions, general_teacher: Path | None, no_control: bool, seeds: int | None, check: bool
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
    run_stages(options, "distilbert", "distill", seeds=seeds, check=check, general_teacher=general_teacher)

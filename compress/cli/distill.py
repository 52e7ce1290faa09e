"""Distil a teacher into a smaller student, and measure both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compress.cli._flags import resolve, stage_flags
from compress.cli._help import Command
from compress.cli._verbs import run_stages
from compress.cli.options import shared
from compress.stages.distill.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions
    from compress.recipe import LoadedRecipe


@click.command(cls=Command)
@shared(
    "recipe", "teacher", "teacher_columns", "data", "unlabelled", "corpus", "training_compute", "deterministic", "onnx",
    "output", "several", "push", "store", "experiment",
)  # fmt: skip
@stage_flags(TABLE)
def command(options: RunOptions, given: dict[str, Any]) -> None:
    """Distil a teacher into a smaller student, and measure both.

    \b
      compress distill --recipe distilbert-task --teacher FOLDER --data FILE_OR_FOLDER

    Without options it runs the recipe `distilbert`, which first trains a teacher (once) on generated data.

    A teacher can also be columns of the data, written by any model or by annotators:

    \b
      compress distill --recipe distilbert-task --student FOLDER --data DATA --teacher-column probabilities

    It prints a table of teacher, student and control (the same student trained on hard labels only), the student's
    folder, and commands to use it and to open the MLflow page. Likely training problems are reported as findings,
    before step 1 and during training.

    If a student does not learn:

    \b
      compress distill --recipe distilbert-task --teacher FOLDER --data FILE_OR_FOLDER --check

    trains it on 64 examples and reports which objective does not decrease, the likely cause, and the estimated time of
    the full run. Exit code 0: it learns them; 3: it does not.

    How many labels do you need, and what is text without labels worth?

    \b
      compress distill --recipe distilbert-task --teacher FOLDER --data FILE_OR_FOLDER --unlabelled TEXT --curve

    trains control and student with several numbers of labelled and unlabelled rows, and prints one table.
    """

    def load() -> LoadedRecipe:
        return resolve(TABLE, options.recipe or TABLE.recipe, None, given, options)

    if given["plan_data"]:
        from compress.console import Console
        from compress.experiments.plan_data import plan_data

        console = Console(quiet=options.quiet, json=options.json)
        console.listen()
        plan_data(load().recipe, options, console, verb=TABLE.kind, general_teacher=given["general_teacher"])
        return
    seeds, check, general = given["seeds"], given["check"], given["general_teacher"]
    sizes = (given["curve_labelled"], given["curve_unlabelled"])
    curve = sizes if given["curve"] or any(sizes) else None
    run_stages(options, load, TABLE.kind, seeds=seeds, check=check, curve=curve, general_teacher=general)

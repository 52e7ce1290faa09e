"""How long a stage trains and how fast: what the recipe leaves open, and a sentence on it for `--dry-run`."""

from __future__ import annotations

import math
from pathlib import Path

from compress.contracts import BatchSource, TrainingPlan
from compress.data.tasks import task_of
from compress.modelfolder import folder as modelfolder
from compress.report.rows import title
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.stage import StageContext
from compress.stages.shared.validation import task_choice
from compress.training.length import choose_length, fixed_length
from compress.training.rate import choose_rate
from compress.training.time_limit import format_minutes


def settle_plan(
    plan: TrainingPlan,
    source: BatchSource,
    hidden: int,
    context: StageContext,
    *,
    open_ended: bool = True,
    factor: float = 1.0,
    why: str = "for the parameters trained",
) -> TrainingPlan:
    """The plan with what the recipe leaves to us, which is printed. hidden: hidden size of the encoder.  factor: of the
    learning rate that this size suggests.  why: there is a factor.

    open_ended: training can end when a metric stops rising: something is validated, and nothing in it changes with the
    share of the steps that are done. Otherwise a length that is not given follows from the size of the data.
    """
    if plan.learning_rate is None:
        plan = plan.model_copy(update={"learning_rate": choose_rate(hidden, factor)})
        by = f"by the hidden size {hidden}" + ("" if factor == 1 else f", times {factor:g} {why}")
        context.say(f"learning rate {plan.rate:g}, {by}")
    if plan.is_automatic and not open_ended:
        steps = fixed_length(plan, source.steps(0))
        plan = plan.model_copy(update={"min_steps": steps, "max_steps": steps})
        context.say(f"training for {steps:,} steps, by the size of the data")
    return plan


def describe_task_plan(
    plan: TrainingPlan,
    context: StageContext,
    model: Path | None,
    factor: float = 1.0,
    metric: str | None = None,
    more_rows: int = 0,
) -> str:
    """Length, batch size and learning rate of a training on the labelled rows, for people, as far as they are known.
    model: the folder whose encoder is trained, None while there is none.  factor: of a learning rate by its size.
    metric: what ends the training, where it is not the task's metric on the validation rows.  more_rows: that are
    trained on beside the labelled ones."""
    table = context.opened()
    hidden = None if model is None else modelfolder.inspect(model).config.hidden
    if table is None:
        return describe_plan(plan, hidden, factor=factor)
    metric = metric or f"validation {title(task_choice(table)[0])}"
    rows = task_of(table.task, table.settings).count_examples(table.split("train")) + more_rows
    told = describe_plan(plan, hidden, rows, metric, factor=factor)
    return f"{told}, texts of up to {task_max_length(context.recipe):,} tokens"


def describe_plan(
    plan: TrainingPlan, hidden: int | None = None, rows: int | None = None, metric: str = "", *, factor: float = 1.0
) -> str:
    """Length, batch size and learning rate, for people. hidden: hidden size of the encoder.  rows: of the training
    data; both None where they are not known.  metric: what is validated.  factor: of a learning rate by the size."""
    rate = choose_rate(hidden, factor) if plan.learning_rate is None and hidden is not None else plan.learning_rate
    told = "by the hidden size of the encoder" if rate is None else f"{rate:g}"
    length = plan.length
    if plan.is_automatic:
        length = f"until {metric} stops rising" if metric else "until validation stops improving"
        if rows is not None:
            length += f" ({choose_length(plan, max(1, math.ceil(rows / plan.batch_rows)))})"
    length += "" if plan.minutes is None else f", at most {format_minutes(plan.minutes)}"
    return f"{length}, {plan.batch_rows} rows a step, learning rate {told}"

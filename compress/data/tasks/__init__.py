"""What a model can be made to answer: one file is one kind of task, the class in it is `Task`.

`compress.data.task.Task` says what each must have. Everything about a kind is in its file; a new kind edits nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from compress import registry
from compress.data.reading.columns import RequestedColumns
from compress.data.reading.frame import Frame
from compress.data.task import Task
from compress.errors import UserError, printable


def kinds() -> list[str]:
    """The kinds of task there are."""
    return [name.replace("_", "-") for name in registry.parts(__name__)]


def task_of(kind: str, settings: Mapping[str, Any] | None = None) -> Task:
    """The task called `kind`. settings: see `Task.settings`. Raises UserError with the nearest kind there is."""
    return _plain(kind).configure(settings or {})


def example_of(kind: str | None, columns: Collection[str] = ()) -> str:
    """What `compress predict` is given for this task, where its data has these columns; for a task that is not known, a
    text."""
    return task_of(kind).example_for(columns) if kind in kinds() else Task.example


@cache
def _plain(kind: str) -> Task:
    return registry.create(__name__, kind.replace("-", "_"))


def find_task(name: str, where: str) -> Task:
    """The task that a data set's description means by `name`. Raises UserError with those known."""
    for kind in kinds():
        task = task_of(kind)
        if name in (kind, kind.replace("-", "_"), *task.aliases):
            return task
    raise UserError(f"unknown task '{printable(name, 60)}'", where=where, do="known: " + ", ".join(kinds()))


def find_label_free(head: tuple[str, str] | None) -> Task | None:
    """The task of a model with this head that any text is data of; None where it needs labels."""
    found = find_bound(head)
    return found if found is not None and found.label_free else None


def find_bound(head: tuple[str, str] | None) -> Task | None:
    """The task that a model with this head always does, whatever the data is for; None where the data decides."""
    bound = (task for task in map(task_of, kinds()) if task.label_free or task.pairs_answer)
    return next((task for task in bound if task.head == head), None)


def choose(frame: Frame, asked: RequestedColumns, head: tuple[str, str] | None = None) -> Task:
    """The task that the columns look most like. head: kind and problem of a model's head, which a task should fit."""
    claims = {task: task.claims(frame, asked) for task in map(task_of, kinds())}
    fitting = {task: claim for task, claim in claims.items() if claim and task.head == head}
    found = fitting or claims
    return max(found, key=lambda task: found[task])


def make_other_task_error(kind: str, head: tuple[str, str], where: str, why: str = "") -> UserError:
    """For a model whose head is for another task than the data. kind: the data's."""
    return UserError(
        f"this data is for {kind}, and the model's head is for {for_head(head).kind}",
        where=where,
        why=why,
        do="use data for the same task as the model, set the task of the data with --task, or train a new head "
        "(`compress finetune --new-head`)",
    )


def for_head(head: tuple[str, str], *, paired: bool = False) -> Task:
    """The task of a model that says nothing but its head's kind and problem. paired: it is given two texts."""
    fitting = [task for task in map(task_of, kinds()) if task.head == head]
    if not fitting:
        raise UserError(f"no task matches a head of type {head[0]}, {head[1]}")
    return next((task for task in fitting if ("text_pair" in task.text_roles) == paired), fitting[0])

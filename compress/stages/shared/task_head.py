"""A model's task head and the data: whether both have the same task and labels, and a new head where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from compress.data.tables.label_order import have_same_labels
from compress.data.tables.table import Table
from compress.data.task import Task
from compress.data.tasks import for_head, make_other_task_error, task_of
from compress.encoder.config.encoder import HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError, printable
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.family import stock_heads
from compress.modelfolder.folder import FolderInfo, LoadedModel
from compress.stages.shared.stage import StageContext

ONE_LABEL = ("classification", "single_label")
"""`head_of` a model that gives each text one of several labels, which is right or wrong."""


def load_for_task(
    folder: Path, table: Table, context: StageContext, *, dropout: float | None, new_head: bool
) -> LoadedModel:
    """A model with a task head for the table's labels: its own when it answers the same task and labels, else a new
    one. dropout: of the whole model, None for its own.

    Raises UserError when it has a head for another task or other labels and `new_head` does not say to replace it.
    """
    info = modelfolder.inspect(folder)
    names, task = list(table.label_names), task_of(table.task)
    if task.label_free:
        raise UserError(
            f"a head for {task.kind} is not trained on labels", where=str(folder), do="use distill, which needs none"
        )
    fresh, has_head = None, "task" in stock_heads(info.heads)
    if new_head or not has_head:
        kind, problem = task.head
        fresh = {"task": info.new_head(HeadConfig(kind=kind, labels=task.count_outputs(names), problem=problem))}
        if has_head:
            had = _told(info.heads["task"], info.label_names)
            context.say(f"the model's task head ({had}) is replaced by a new one")
    else:
        _check_own_head(info, task, names, str(folder))
    keep = set() if fresh else {"task"}
    loaded = modelfolder.load_model(
        folder, keep=keep, new_heads=fresh, dropout=dropout, seed=context.seed, device=context.device
    )
    for note in loaded.notes:
        context.say(note)
    if fresh:
        _set_first_guess(loaded.model, task.first_guess(table.split("train").labels))
    return loaded


def _check_own_head(info: FolderInfo, task: Task, names: Sequence[str], where: str) -> None:
    """Raise UserError unless the model's own head is for this task and these labels."""
    if head_of(info.heads["task"]) != task.head:
        raise UserError(
            "the model's task head and the data are for different tasks",
            where=where,
            why=f"it has {_told(info.heads['task'], info.label_names)}, the data is for {task.kind}",
            do="use --new-head to replace it",
        )
    if not have_same_labels(info.label_names, names):
        raise UserError(
            "the model's task head and the data have different labels",
            where=where,
            why=f"{_listed(info.label_names)} versus {_listed(names)}",
            do="use --new-head to replace it",
        )


def _set_first_guess(model: Model, guess: np.ndarray | None) -> None:
    """Begin the biases of a new task head at the best constant answer; None: leave them."""
    if guess is None:
        return
    last = [module for module in model.heads["task"].modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.bias.copy_(torch.as_tensor(guess, dtype=last.bias.dtype))


def check_same_labels(teacher: LoadedModel, table: Table) -> None:
    """Raise UserError unless the teacher answers the table's task and labels, in their order (3 against 1 would
    broadcast)."""
    check_same_task(teacher.heads["task"], teacher.label_names, table.task, str(teacher.path))
    if not have_same_labels(teacher.label_names, table.label_names):
        raise UserError(
            "teacher and data have different labels",
            where=str(teacher.path),
            why=f"{_listed(teacher.label_names)} versus {_listed(table.label_names)}",
            do="name the data's labels in the teacher's order with --set 'data.labels=[...]'",
        )


def check_same_task(head: HeadConfig, names: Sequence[str], kind: str, where: str) -> None:
    """Raise UserError unless a model's task head is one for tasks of this kind."""
    if head_of(head) != task_of(kind).head:
        raise make_other_task_error(kind, head_of(head), where, f"its labels are {_listed(names)}")


def head_of(head: HeadConfig) -> tuple[str, str]:
    """What decides whether a head is one for a task."""
    return head.kind, head.problem


def _told(head: HeadConfig, names: Sequence[str]) -> str:
    return f"a head for {for_head(head_of(head)).kind} with {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    return printable("[" + ", ".join(names[:6]) + (", …" if len(names) > 6 else "") + f"] ({len(names)})", 200)

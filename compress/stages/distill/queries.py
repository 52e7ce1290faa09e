"""What a distillation of rerankers may ask for, and what objectives of rerankers need."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from compress.data.task import Task
from compress.errors import UserError
from compress.stages.distill.spec import Spec


def check_ranking(objectives: Mapping[str, tuple[float, nn.Module]], spec: Spec, task: Task) -> None:
    """Raise UserError for objectives that compare the documents of a query where the task has none, and for options
    that a distillation of rerankers does not have."""
    for name, (_, objective) in objectives.items():
        if getattr(objective, "by_query", False) and not task.ranks:
            raise UserError(
                f"objective {name} compares the documents of a query, and the task is {task.kind}", where="objectives",
                do="use soft_targets and hard_labels, as in recipe distilbert-task",
            )  # fmt: skip
    if not task.ranks:
        return
    for name, asked in {"augmentation": spec.augmentation, "row_filter": spec.row_filter}.items():
        if asked:
            raise UserError(f"{name} is not supported for reranking", where=name, do="remove it")

"""Rows without labels get the parent's answers for labels: what is measured then is agreement with the parent."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from compress.data.tables.table import Rows, Table, fingerprint
from compress.errors import UserError
from compress.predict.predictor import Predictor

ABOVE = 0.0
"""The logit from which one of several labels is given."""


def label_with_parent(table: Table, parent: Path, max_length: int, **how: Any) -> Table:
    """The table with the answers of the model in `parent`. how: as of `Predictor`.

    Raises UserError for kinds of task whose answers are not one row of numbers each.
    """
    predictor = Predictor(parent, task=table.task, runtime="torch", **how)
    splits = {name: _answered(rows, predictor, max_length) for name, rows in table.splits.items()}
    digest = fingerprint(splits, table.task, table.label_names)
    return dataclasses.replace(table, splits=splits, fingerprint=digest)


def _answered(rows: Rows, predictor: Predictor, max_length: int) -> Rows:
    kind, problem = predictor.head.kind, predictor.head.problem
    if kind != "classification":
        raise UserError(
            f"{predictor.task.kind} needs labels",
            where="--data",
            why="predictions can only replace labels in tasks with one prediction per row",
            do="use labelled data",
        )
    examples = predictor.encode_rows(rows, max_length=max_length)
    logits = predictor.logits(examples)
    pooled = getattr(predictor.task, "pool_chunks", None)
    logits = logits if pooled is None else pooled(logits, examples)
    if problem == "regression":
        labels: np.ndarray = logits[:, 0].astype(np.float32)
    elif problem in ("multi_label", "ranking"):
        labels = (logits > ABOVE).astype(np.float32)
    else:
        labels = logits.argmax(-1).astype(np.int64)
    return dataclasses.replace(rows, labels=labels)

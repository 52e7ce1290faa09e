"""The labelled data that a recipe names, and the settings of its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compress.data.reading.pool import PoolRequest, TextVectors
from compress.data.reading.sources import open_table
from compress.data.reading.teacher_columns import TeacherColumns
from compress.data.tables import groups
from compress.data.tables.table import Table
from compress.data.task import METRIC
from compress.data.tasks import embedding, find_bound
from compress.errors import UserError
from compress.modelfolder.folder import FolderInfo
from compress.recipe import Recipe
from compress.stages.shared.task_head import head_of


def open_table_of(
    recipe: Recipe,
    model: FolderInfo | None = None,
    others: Sequence[str] = (),
    *,
    bare: bool = False,
    measured: str | None = None,
    vectors: Callable[[], TextVectors] | None = None,
) -> Table:
    """The recipe's labelled data. model: one whose answers it is for: the table takes the order of its labels.
    others: columns that rows are told apart by.  bare: there may be no labels.  measured: a split that is enough where
    there is no train split.  vectors: makes what passages of a pool are compared by where the recipe asks for
    vectors."""
    d = recipe.data
    if d is None:
        raise UserError(f"recipe {recipe.name} names no data", where="data", do="add --data")
    named = {
        "train": d.train_split,
        "validation": d.validation_split,
        "test": d.test_split,
        "unlabelled": d.unlabelled_split,
    }
    compared = groups.columns_of([recipe.evaluation.group_column or groups.LABEL])
    return open_table(
        d.source,
        task=d.task or _task_of_columns(recipe),
        text_column=d.text_column,
        text_pair_column=d.text_pair_column,
        label_column=d.label_column,
        splits={split: name for split, name in named.items() if name is not None} or None,
        labels=d.labels,
        expect_labels=(model.label_names or None) if model else None,
        expect_head=head_of(model.heads["task"]) if model and "task" in model.heads else None,
        bad_tags=d.bad_tags,
        bad_rows=d.bad_rows,
        limit=d.limit,
        labelled_rows=d.labelled_rows,
        unlabelled=d.unlabelled,
        pool=None if d.pool is None else _request_pool(d.pool, d.pool_rows, d.pool_by == "vectors", vectors),
        teacher=None
        if d.teacher_columns is None
        else TeacherColumns(tuple(d.teacher_columns), d.teacher_values or "auto", d.teacher_noise or 0.0),
        settings={**_settings_of(model), **get_requested_settings(recipe)},
        others={**dict.fromkeys(others, "--slice"), **dict.fromkeys(compared, "group column")},
        bare=bare,
        measured=measured,
    )


def _task_of_columns(recipe: Recipe) -> str | None:
    """Where teacher columns are learned as vectors, no model says that texts are embedded; the objectives do."""
    assert recipe.data is not None
    reads = recipe.data.teacher_columns is not None and any(stage.vector_objective() for stage in recipe.stages)
    return embedding.Task.kind if reads else None


def _request_pool(
    name: str, rows: int | None, by_vectors: bool, vectors: Callable[[], TextVectors] | None
) -> PoolRequest:
    if by_vectors and vectors is None:
        raise UserError(
            "there is no model whose vectors could be compared", where="--pool-by vectors", do="use --pool-by words"
        )
    return PoolRequest(name, rows, vectors if by_vectors else None)


def _settings_of(model: FolderInfo | None) -> dict[str, Any]:
    """The metric that a model was made by goes on deciding, unless a person chooses another; of a kind where it depends
    on the rows, the other settings: by them texts are read, and scores written."""
    if model is None:
        return {}
    head = model.heads.get("task")
    bound = head is not None and find_bound(head_of(head)) is not None
    return {k: v for k, v in model.meta.task_settings.items() if (k == METRIC) != bound}


def get_requested_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings of the task that the recipe names; `settings_for` a table those that models are measured with."""
    assert recipe.data is not None
    names = ("stride", "no_answer_threshold", "long_text", "pooling", "metric")
    said = {name: getattr(recipe.data, name) for name in names}
    return {name: value for name, value in said.items() if value is not None}


def settings_for(recipe: Recipe, table: Table) -> dict[str, Any]:
    """In place of the settings that models have of their own: what the recipe names, and one metric for all of them."""
    return {**get_requested_settings(recipe), **get_metric_setting(table)}


def get_metric_setting(table: Table) -> dict[str, Any]:
    """The setting that one metric judges all models on these rows by, whatever theirs is."""
    return {METRIC: table.settings.get(METRIC)}


def task_max_length(recipe: Recipe) -> int:
    """Most pieces of one text of the labelled data."""
    assert recipe.data is not None
    return recipe.data.max_length

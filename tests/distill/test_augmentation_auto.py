"""When copies of the training texts are added without being asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from compress.data.tables.table import Rows
from compress.stages.distill.augmentation import MOST_LABELLED, settle_augmentation
from compress.stages.distill.augmentation_spec import AugmentationSpec
from compress.stages.distill.spec import Spec
from compress.stages.distill.text_rows import count_added_rows


def rows(count: int, *roles: str, taught: Any = None) -> Rows:
    column = pa.chunked_array([pa.array([f"row {i}" for i in range(count)])])
    return Rows(dict.fromkeys(roles or ("text",), column), np.zeros(count, np.int64), np.arange(count), taught=taught)


def make_spec(method: str = "auto", *, training: Any = None, **keys: Any) -> Spec:
    plan = {"learning_rate": 1e-4, **(training or {})}
    return Spec.model_validate(
        {
            "kind": "distill", "level": "task_specific", "student": {"layers": [0]}, "training": plan,
            "objectives": [{"kind": "soft_targets"}], "augmentation": {"method": method, "copies": 3}, **keys,
        }
    )  # fmt: skip


def settle(
    spec: Spec, train: Rows, *, task: str = "classification", unlabelled: Rows | None = None, limit: int | None = None,
    columns: bool = False,
) -> AugmentationSpec | None:  # fmt: skip
    context = make_context(train, task, unlabelled, limit, columns)
    return settle_augmentation(spec, context.opened(), context).augmentation


def make_context(
    train: Rows, task: str = "classification", unlabelled: Rows | None = None, limit: int | None = None,
    columns: bool = False,
) -> Any:  # fmt: skip
    splits = {"train": train} | ({} if unlabelled is None else {"unlabelled": unlabelled})
    table = SimpleNamespace(splits=splits, split=splits.__getitem__, task=task, settings={})
    data = SimpleNamespace(unlabelled_rows=limit, adds_text=False)
    return SimpleNamespace(opened=lambda: table, recipe=SimpleNamespace(data=data, has_column_teacher=columns))


def test_few_rows_without_other_text_get_copies_by_mix() -> None:
    found = settle(make_spec(), rows(MOST_LABELLED))
    assert found == AugmentationSpec(method="mix", copies=3)
    assert settle(make_spec(training={"steps": 10}), rows(20)) == found
    assert settle(make_spec(), rows(20, "words"), task="token_classification") == found
    assert count_added_rows(make_spec(), make_context(rows(20))) == 60


@pytest.mark.parametrize(
    ("spec", "how"),
    [
        ({}, {"train": rows(MOST_LABELLED + 1)}),
        ({}, {"train": rows(1)}),
        ({}, {"train": rows(20), "unlabelled": rows(5)}),
        ({}, {"train": rows(20), "limit": 0}),
        ({}, {"train": rows(20), "columns": True}),
        ({}, {"train": rows(20, taught=pa.chunked_array([pa.array([1.0])]))}),
        ({}, {"train": rows(20, "question", "context"), "task": "question_answering"}),
        ({}, {"train": rows(20, "text", "text_pair"), "task": "reranking"}),
        ({}, {"train": rows(20), "task": "embedding"}),
        ({"training": {"epochs": 2}}, {"train": rows(20)}),
        ({"objectives": [{"kind": "hard_labels"}]}, {"train": rows(20)}),
        ({"method": "none"}, {"train": rows(20)}),
    ],
    ids=[
        "many rows", "one row", "text", "no text asked for", "teacher columns", "taught rows", "questions", "rankings",
        "embeddings", "epochs", "no teacher asked", "none",
    ],
)  # fmt: skip
def test_elsewhere_there_are_none(spec: dict[str, Any], how: dict[str, Any]) -> None:
    assert settle(make_spec(**spec), **how) is None
    if "task" not in how and "columns" not in how and "unlabelled" not in how:
        assert count_added_rows(make_spec(**spec), make_context(how["train"], limit=how.get("limit"))) == 0


def test_without_a_table_nothing_is_known() -> None:
    context: Any = None
    assert settle_augmentation(make_spec(), None, context).augmentation is None
    assert settle_augmentation(make_spec("mix"), None, context).augmentation is not None


@pytest.mark.parametrize("method", ["auto", "none"])
@pytest.mark.parametrize("key", [{"model": "folder"}, {"keep_labels": True}], ids=["model", "keep_labels"])
def test_keys_of_other_methods_are_refused(method: str, key: dict[str, Any]) -> None:
    with pytest.raises(
        ValidationError, match=f"{next(iter(key))} needs method: masked-lm or neighbours, found {method}"
    ):
        AugmentationSpec.model_validate({"method": method, **key})

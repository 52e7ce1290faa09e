"""A model's task head and the data: the same task and labels, or a new head, which begins at the best guess."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.folder import FolderMeta, save_model
from compress.stages.shared.task_head import check_same_labels, check_same_task, load_for_task

GOLD = np.array([0, 0, 0, 1])


@pytest.fixture
def folder(tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]) -> Path:
    """A classifier of `bad` and `good`."""
    model = Model(tiny_config, {"task": HeadConfig("classification", labels=2)}).initialize(0)
    meta = FolderMeta(family="bert", task="classification", label_names=("bad", "good"))
    return save_model(tmp_path / "m", model, tokenizer_files=toy_tokenizer_files, meta=meta)


def table(kind: str = "classification", names: tuple[str, ...] = ("bad", "good")) -> Any:
    rows = SimpleNamespace(labels=GOLD)
    return SimpleNamespace(task=kind, label_names=names, split=lambda _: rows, settings={})


def load(folder: Path, data: Any, *, new_head: bool = False) -> tuple[Any, list[str]]:
    said: list[str] = []
    context: Any = SimpleNamespace(say=said.append, seed=1, device="cpu")
    return load_for_task(folder, data, context, dropout=None, new_head=new_head), said


def last_bias(loaded: Any) -> torch.Tensor:
    return [m for m in loaded.model.heads["task"].modules() if isinstance(m, nn.Linear)][-1].bias.detach()


def test_its_own_head_is_kept(folder: Path) -> None:
    loaded, said = load(folder, table())
    assert last_bias(loaded).tolist() == [0.0, 0.0]
    assert not said


def test_a_new_head_begins_at_the_best_constant_answer(folder: Path) -> None:
    loaded, said = load(folder, table("regression", ("score",)), new_head=True)
    assert last_bias(loaded).tolist() == [GOLD.mean()]
    assert said[0] == (
        "the model's task head (a head for classification with [bad, good] (2)) is replaced by a new one"
    )


def test_a_head_without_label_names_is_kept_for_data_that_names_them(
    tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]
) -> None:
    model = Model(tiny_config, {"task": HeadConfig("classification", labels=2)}).initialize(0)
    meta = FolderMeta(family="bert", task="classification", label_names=("LABEL_0", "LABEL_1"))
    unnamed = save_model(tmp_path / "m", model, tokenizer_files=toy_tokenizer_files, meta=meta)
    loaded, said = load(unnamed, table())
    assert last_bias(loaded).tolist() == [0.0, 0.0]
    assert not said


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (table(names=("good", "bad")), r"different labels: \[bad, good\] \(2\) versus \[good, bad\] \(2\)"),
        (table("token-classification"), "are for different tasks.*the data is for token-classification"),
        (table("embedding", ()), "a head for embedding is not trained on labels"),
    ],
)
def test_a_head_for_something_else(folder: Path, data: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(folder, data)


def test_a_teacher_answers_the_labels_in_their_order() -> None:
    teacher: Any = SimpleNamespace(
        heads={"task": HeadConfig("classification", labels=2)}, label_names=("bad", "good"), path=Path("t")
    )
    check_same_labels(teacher, table())
    check_same_labels(teacher, table(names=("LABEL_0", "LABEL_1")))
    with pytest.raises(UserError, match="teacher and data have different labels"):
        check_same_labels(teacher, table(names=("good", "bad")))
    with pytest.raises(UserError, match="this data is for token-classification, and the model's head is for class"):
        check_same_labels(teacher, table("token-classification"))


def test_many_labels_are_not_listed_in_full() -> None:
    names = [str(i) for i in range(9)]
    with pytest.raises(UserError, match=r"its labels are \[0, 1, 2, 3, 4, 5, …\] \(9\)"):
        check_same_task(HeadConfig("classification", labels=9), names, "regression", "m")

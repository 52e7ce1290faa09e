"""ERNIE's embeddings of the pretraining task: the first one is part of every token, the others are never read."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import family_cases as cases
import pytest
import torch
from family_cases import compare, stock_load
from safetensors.torch import load_file, save_file

from compress.errors import UserError
from compress.modelfolder.folder import FolderMeta, load_model, save_model

TABLE = "ernie.embeddings.task_type_embeddings.weight"
CLASSES = [("ErnieModel", set[str]()), ("ErnieForMaskedLM", {"mlm"}), ("ErnieForSequenceClassification", {"task"})]


def write(hf: ModuleType, name: str, folder: Path, **changes: Any) -> Any:
    return cases.stock(hf, "ernie", name, folder, use_task_id=True, **changes)


@pytest.mark.parametrize(("name", "heads"), CLASSES)
def test_the_first_task_moves_into_the_segments(name: str, heads: set[str], hf: ModuleType, tmp_path: Path) -> None:
    reference = write(hf, name, tmp_path / "stock", task_type_vocab_size=5)
    loaded = load_model(tmp_path / "stock")
    compare("ernie", loaded.model, reference, heads)
    again = save_model(tmp_path / "again", loaded.model, tokenizer_files={}, meta=FolderMeta(family="ernie"))
    assert json.loads((again / "config.json").read_text())["use_task_id"] is False
    returned = stock_load(hf, name, again)
    compare("ernie", loaded.model, returned, heads)
    tasks = reference.base_model.embeddings.task_type_embeddings.weight.numel()
    count = lambda model: sum(p.numel() for p in model.parameters())  # noqa: E731
    assert count(returned) == count(loaded.model) == count(reference) - tasks


def test_a_table_that_is_not_used_is_ignored(hf: ModuleType, tmp_path: Path) -> None:
    reference = cases.stock(hf, "ernie", "ErnieForMaskedLM", tmp_path)
    rewrite(tmp_path, {TABLE: torch.ones(3, cases.SHAPE["hidden_size"])})
    compare("ernie", load_model(tmp_path).model, reference, {"mlm"})


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (None, "1 tensor missing (ernie.embeddings.task_type_embeddings.weight)"),
        (torch.ones(3, 5), "has shape [3, 5]"),
        (torch.ones(0, 32), "has shape [0, 32]"),
    ],
)
def test_a_table_that_does_not_fit(table: torch.Tensor | None, told: str, hf: ModuleType, tmp_path: Path) -> None:
    write(hf, "ErnieForMaskedLM", tmp_path)
    rewrite(tmp_path, {TABLE: table})
    with pytest.raises(UserError) as error:
        load_model(tmp_path)
    assert told in str(error.value)


def rewrite(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path, {"format": "pt"})

"""The files of sentence-transformers and the embedding head: prompts, settings, and what is written for a new head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.heads import DenseShape
from compress.encoder.modules.model import Model
from compress.modelfolder.family import Description
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.sentence_head import embedding_meta, head_files, with_embedding
from compress.modelfolder.sentence_pooling import read_parts

CONFIG = EncoderConfig.uniform(vocabulary=9, hidden=8, layers=1, heads=2, feed_forward=8)
DENSE = HeadConfig("embedding", labels=3, pooling="mean", denses=(DenseShape(5, False, True), DenseShape(3)))
PLAIN = HeadConfig("embedding", labels=8, pooling="first", normalize=True)


def model(head: HeadConfig, seed: int = 0) -> Model:
    return Model(CONFIG, {"task": head}).initialize(seed)


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def described(folder: Path) -> tuple[Description, list[str]]:
    description, stored, notes = with_embedding(Description(CONFIG, {}, {}), folder)
    assert set(description.names.values()) == set(stored)
    return description, notes


@pytest.mark.parametrize("head", [DENSE, PLAIN], ids=["dense", "plain"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prompt": "the "},
        {"query_prompt": "query: ", "document_prompt": "passage: "},
        {"query_prompt": "Frage: „", "unpooled_prompts": True},
        {"lowercase": True, "similarity": "dot"},
    ],
    ids=str,
)
def test_a_new_heads_files_say_what_the_model_knows(head: HeadConfig, settings: dict[str, Any], tmp_path: Path) -> None:
    meta = FolderMeta(task="embedding", task_settings=settings, max_length=20)
    files = head_files(model(head), meta, {})
    folder = written(tmp_path, files)
    description, notes = described(folder)
    assert description.heads == {"task": head}
    assert notes == []
    found = embedding_meta(FolderMeta(), folder, CONFIG.hidden)
    assert (found.task, found.task_settings, found.max_length) == ("embedding", settings, 20)
    assert head_files(model(head, seed=1), meta, files).keys() == files.keys()


def test_only_the_matrices_that_were_trained_are_written_anew(tmp_path: Path) -> None:
    trained = model(DENSE)
    files = head_files(trained, FolderMeta(), {})
    assert head_files(trained, FolderMeta(), files) == files
    with torch.no_grad():
        trained.heads["task"].get_parameter("denses.1.bias").add_(1)
    again = head_files(trained, FolderMeta(), files)
    assert [name for name in files if again[name] != files[name]] == ["3_Dense/model.safetensors"]
    parts = read_parts(written(tmp_path, again), CONFIG.hidden)
    assert parts.denses[1].bias is not None
    torch.testing.assert_close(parts.denses[1].bias, trained.heads["task"].get_parameter("denses.1.bias").detach())


def settings_of(folder: Path, prompts: Any) -> dict[str, Any]:
    written(folder, head_files(model(PLAIN), FolderMeta(), {}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return embedding_meta(FolderMeta(), folder, CONFIG.hidden).task_settings


@pytest.mark.parametrize(
    ("prompts", "settings"),
    [
        ({}, {}),
        ({"prompts": None}, {}),
        ({"prompts": []}, {}),
        ({"prompts": {"query": "", "document": None, "passage": 3, "corpus": "c: "}}, {"document_prompt": "c: "}),
        ({"prompts": {"passage": "p: ", "document": "d: "}}, {"document_prompt": "d: "}),
        ({"prompts": {"passage": "p: ", "document": ""}}, {}),
        ({"prompts": {"Query": "q: "}}, {}),
        ({"prompts": {"a": "A: "}, "default_prompt_name": "a"}, {"prompt": "A: "}),
        ({"similarity_fn_name": "cosine"}, {}),
        ({"similarity_fn_name": None}, {}),
        ({"similarity_fn_name": ["dot"]}, {"similarity": "['dot']"}),
        ({"similarity_fn_name": "\x1b" + "x" * 90}, {"similarity": "\\x1b" + "x" * 35 + "…"}),
    ],
    ids=str,
)
def test_prompts_of_a_hand_edited_file(prompts: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    assert settings_of(tmp_path, prompts) == settings


def test_a_folder_without_modules_or_with_another_head_has_none(tmp_path: Path) -> None:
    assert described(tmp_path)[0].heads == {}
    written(tmp_path, head_files(model(PLAIN), FolderMeta(), {}))
    other = {"task": HeadConfig("classification", labels=3)}
    description, stored, notes = with_embedding(Description(CONFIG, dict(other), {}), tmp_path)
    assert (description.heads, stored, notes) == (other, {}, [])


@pytest.mark.parametrize(
    "modules", ["[]", "{}", "x", '[{"type": "sentence_transformers.models.WordWeights", "path": "1_W"}]']
)
def test_modules_that_are_not_computed_leave_the_encoder(modules: str, tmp_path: Path) -> None:
    written(tmp_path, head_files(model(PLAIN), FolderMeta(), {}))
    (tmp_path / "modules.json").write_text(modules)
    description, notes = described(tmp_path)
    assert description.heads == {}
    assert len(notes) == 1
    assert notes[0].startswith("its sentence embeddings cannot be computed: ")

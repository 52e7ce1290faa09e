"""Rerankers as sentence-transformers stores them: what their files may say of the score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compress.errors import UserError
from compress.modelfolder.cross_encoder import config_keys, is_cross_encoder, ranking_meta, without_embedder
from compress.modelfolder.meta import FolderMeta
from compress.modelfolder.sentence_pooling import MODULES, PROMPTS

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


def read(values: dict[str, Any], folder: Path) -> str:
    return str(ranking_meta(FolderMeta(), values, folder).task_settings["activation"])


def write_newer(folder: Path, **values: Any) -> None:
    (folder / MODULES).write_text("[]", encoding="utf-8")
    (folder / PROMPTS).write_text(json.dumps({"model_type": "CrossEncoder", **values}), encoding="utf-8")


def test_the_activation_is_looked_for_as_by_sentence_transformers(tmp_path: Path) -> None:
    assert read({}, tmp_path) == "sigmoid"
    old, newer = "sbert_ce_default_activation_function", "sentence_transformers"
    assert read({old: IDENTITY}, tmp_path) == "identity"
    assert read({old: "torch.nn.Sigmoid"}, tmp_path) == "sigmoid"
    assert read({old: IDENTITY, newer: {"activation_fn": SIGMOID}}, tmp_path) == "sigmoid"
    assert read({old: IDENTITY, newer: {}}, tmp_path) == "sigmoid"
    write_newer(tmp_path, activation_fn=IDENTITY)
    assert read({newer: {"activation_fn": SIGMOID}}, tmp_path) == "identity"
    for kind in ("sigmoid", "identity"):
        assert read(config_keys(FolderMeta(task_settings={"activation": kind})), tmp_path / "no") == kind


@pytest.mark.parametrize("said", ["torch.nn.Tanh", 3, ["torch.nn.Sigmoid"], {"name": "Sigmoid"}])
def test_another_activation_is_one_line(said: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json: activation_fn .* is not supported; use torch\.nn\.modules"):
        read({"sentence_transformers": {"activation_fn": said}}, tmp_path)


def test_a_default_prompt_is_not_supported(tmp_path: Path) -> None:
    write_newer(tmp_path, prompts={"query": "query: "}, default_prompt_name="query")
    with pytest.raises(UserError, match="a default prompt of a reranker is not supported"):
        read({}, tmp_path)


def test_what_is_a_cross_encoder(tmp_path: Path) -> None:
    assert not is_cross_encoder({}, tmp_path)
    assert not is_cross_encoder({"sentence_transformers": "4.0.0"}, tmp_path)
    assert is_cross_encoder({"sentence_transformers": {}}, tmp_path)
    write_newer(tmp_path)
    assert is_cross_encoder({}, tmp_path)


def test_files_of_an_embedder_go_and_those_of_a_reranker_stay() -> None:
    files = {MODULES: b"[]", "1_Pooling/config.json": b"{}", "sentence_bert_config.json": b"{}", "vocab.txt": b""}
    assert without_embedder(files) == {"vocab.txt": b""}
    of_a_reranker = {**files, PROMPTS: b'{"model_type": "CrossEncoder"}'}
    assert without_embedder(of_a_reranker) == of_a_reranker

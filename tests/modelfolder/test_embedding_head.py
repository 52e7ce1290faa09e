"""The embedding head of a sentence-transformers folder: read, trained, written, and the same vectors there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_folders import LONGEST, TEXTS, as_sentence_transformers, module_files, vectors

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.heads import DenseShape
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model
from compress.modelfolder.sentence_files import prompt_files, sentence_files
from compress.modelfolder.sentence_pooling import read_parts
from compress.predict.embedder import Embedder
from compress.predict.predictor import Predictor
from compress.predict.ranking import rank_documents


@pytest.fixture
def folder(tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]) -> Path:
    """An encoder of width 32 without a head."""
    model = Model(tiny_config).initialize(1)
    return save_model(tmp_path / "plain", model, tokenizer_files=toy_tokenizer_files)


def answers(folder: Path) -> np.ndarray:
    return np.stack([answer.vector for answer in Predictor(folder).predict(TEXTS)])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("dense", [None, 6])
def test_the_head_gives_the_vectors_of_the_files(folder: Path, pooling: str, dense: int | None) -> None:
    as_sentence_transformers(folder, 32, pooling=pooling, dense=dense)
    info = inspect(folder)
    head = info.heads["task"]
    assert (head.kind, head.labels, head.normalize) == ("embedding", dense or 32, True)
    assert head.pooling == ("first" if pooling == "cls" else "mean")
    assert (info.meta.task, info.meta.max_length, info.label_names) == ("embedding", LONGEST, ())
    assert info.meta.task_settings == {"query_prompt": "query: ", "document_prompt": "passage: ", "lowercase": True}
    assert info.parameters - load_model(folder, keep=()).config.count_parameters() == (dense or 0) * 32
    np.testing.assert_allclose(answers(folder), vectors(folder, TEXTS), atol=1e-5)


@pytest.mark.parametrize("dense", [None, 6])
def test_vectors_are_cut_as_sentence_transformers_cuts_them(folder: Path, dense: int | None, tmp_path: Path) -> None:
    as_sentence_transformers(folder, 32, dense=dense)
    whole = answers(folder)
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncate_dim": 4}))
    np.testing.assert_allclose(answers(folder), whole[:, :4], atol=1e-6)  # after Normalize, so they are shorter than 1
    np.testing.assert_allclose(Embedder(folder)(TEXTS), whole[:, :4], atol=1e-5)
    loaded = load_model(folder)
    assert (loaded.heads["task"].labels, loaded.heads["task"].truncate) == (4, 4)
    made = save_model(tmp_path / "made", loaded.model, tokenizer_files=loaded.tokenizer_files, meta=loaded.meta)
    np.testing.assert_allclose(answers(made), whole[:, :4], atol=1e-6)
    assert json.loads((made / file.name).read_text())["truncate_dim"] == 4
    assert HeadConfig.from_dict(loaded.heads["task"].to_dict()) == loaded.heads["task"]
    assert "truncate_dim" not in json.loads(prompt_files(folder, cut=False)[file.name])
    file.write_text(json.dumps({"truncate_dim": 1000}))
    assert inspect(folder).heads["task"].truncate is None
    file.write_text(json.dumps({"truncate_dim": "x"}))
    with pytest.raises(UserError, match="truncate_dim"):
        read_parts(folder, 32)


def test_it_is_written_as_it_was_read(folder: Path, tmp_path: Path) -> None:
    as_sentence_transformers(folder, 32, dense=6)
    loaded = load_model(folder)
    how: dict[str, Any] = {"tokenizer_files": loaded.tokenizer_files, "meta": loaded.meta}
    made = save_model(tmp_path / "made", loaded.model, **how, beside=sentence_files(folder, loaded.config))
    assert module_files(made) == module_files(folder)
    assert inspect(made).stock_class == inspect(folder).stock_class == "BertModel"
    np.testing.assert_allclose(answers(made), answers(folder), atol=1e-6)
    new = save_model(tmp_path / "new", loaded.model, **how)  # without the files: they are made
    assert inspect(new).meta.task_settings == loaded.meta.task_settings
    np.testing.assert_allclose(answers(new), answers(folder), atol=1e-6)


@pytest.mark.parametrize("settled", [True, False])
def test_a_copy_reads_texts_as_long_whatever_it_was_made_with(folder: Path, settled: bool, tmp_path: Path) -> None:
    as_sentence_transformers(folder, 32)
    if not settled:  # version 6 leaves it to the tokenizer
        (folder / "sentence_bert_config.json").write_text("{}")
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": LONGEST}))
    loaded = load_model(folder)
    meta = loaded.meta.model_copy(update={"max_length": 7})  # of the data that a stage read
    beside = sentence_files(folder, loaded.config)
    made = save_model(tmp_path / "made", loaded.model, tokenizer_files=loaded.tokenizer_files, meta=meta, beside=beside)
    assert json.loads((made / "tokenizer_config.json").read_text())["model_max_length"] == LONGEST
    assert inspect(made).meta.max_length == LONGEST


def test_a_trained_dense_module_is_written_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    as_sentence_transformers(folder, 32, dense=6)
    loaded = load_model(folder)
    with torch.no_grad():
        loaded.model.heads["task"].get_parameter("denses.0.weight")[0].zero_()
    beside = sentence_files(folder, loaded.config)
    made = save_model(
        tmp_path / "made", loaded.model, tokenizer_files=loaded.tokenizer_files, meta=loaded.meta, beside=beside
    )
    ours, theirs = module_files(made), module_files(folder)
    assert [name for name in ours if ours[name] != theirs[name]] == ["2_Dense/model.safetensors"]
    assert not (made / "compress.safetensors").exists()
    np.testing.assert_allclose(answers(made), vectors(made, TEXTS), atol=1e-5)
    assert np.abs(answers(made) - answers(folder)).max() > 1e-3


def test_a_shape_that_no_class_has_keeps_its_vectors(
    tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]
) -> None:
    import dataclasses

    uneven = dataclasses.replace(tiny_config, layers=(tiny_config.layers[0], tiny_config.layers[1].__class__(1, 16, 8)))
    head = HeadConfig("embedding", labels=5, pooling="mean", denses=(DenseShape(5, tanh=True),))
    model = Model(uneven, {"task": head}).initialize(2)
    meta = FolderMeta(task_settings={"prompt": "the ", "similarity": "dot"})
    made = save_model(tmp_path / "made", model, tokenizer_files=toy_tokenizer_files, meta=meta)
    assert inspect(made).stock_class is None
    assert inspect(made).heads == {"task": head}
    assert inspect(made).meta.task_settings == meta.task_settings
    state = load_model(made).model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_modules_that_are_not_computed_leave_an_encoder(folder: Path) -> None:
    as_sentence_transformers(folder, 32)
    config = folder / "1_Pooling/config.json"
    values = json.loads(config.read_text()) | {
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_sqrt_len_tokens": True,
    }
    config.write_text(json.dumps(values))
    loaded = load_model(folder)
    assert loaded.heads == {}
    assert loaded.notes == ("its sentence embeddings cannot be computed: this pooling is not supported",)
    with pytest.raises(
        UserError, match=r"1_Pooling/config.json: this pooling is not supported: found pooling_mode_mean_sqrt"
    ):
        Predictor(folder)
    shutil.rmtree(folder / "1_Pooling")
    with pytest.raises(UserError, match="1_Pooling"):
        Predictor(folder)


def test_a_dense_module_that_does_not_fit(folder: Path) -> None:
    as_sentence_transformers(folder, 32, dense=6)
    config = folder / "2_Dense/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"in_features": 31}))
    with pytest.raises(UserError, match="in_features"):
        Predictor(folder)


def test_head_configs() -> None:
    head = HeadConfig("embedding", labels=6, pooling="mean", denses=(DenseShape(6, False),), normalize=True)
    assert HeadConfig.from_dict(json.loads(json.dumps(head.to_dict()))) == head
    with pytest.raises(UserError, match="the last Dense module gives the vector"):
        HeadConfig("embedding", labels=7, denses=(DenseShape(6),))
    with pytest.raises(UserError, match="only an embedding head has"):
        HeadConfig("classification", normalize=True)
    assert "denses" not in HeadConfig("classification").to_dict()  # older versions read these


def test_sentence_transformers_gives_the_same_vectors(folder: Path, tmp_path: Path) -> None:
    """Written there, read here; written here, read there."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    of = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    body = of.Transformer(str(folder), max_seq_length=12)
    denses = [of.Dense(32, 12), of.Dense(12, 6, bias=False, activation_function=torch.nn.Identity())]
    modules = [body, of.Pooling(32, pooling_mode="cls"), *denses, of.Normalize()]
    prompts = {"mine": "she said ", "query": "not "}
    made = sentence_transformers.SentenceTransformer(
        modules=modules, prompts=prompts, default_prompt_name="mine", device="cpu"
    )
    made.save(str(tmp_path / "theirs"))
    wanted = made.encode(TEXTS)
    np.testing.assert_allclose(answers(tmp_path / "theirs"), wanted, atol=1e-5)
    loaded = load_model(tmp_path / "theirs")
    assert loaded.meta.task_settings == {"prompt": "she said ", "query_prompt": "not "}
    ranked = rank_documents(Predictor(tmp_path / "theirs"), "a film", TEXTS)
    similarities = made.similarity(made.encode_query("a film"), made.encode_document(TEXTS))[0]
    found = [one.score for one in sorted(ranked, key=lambda one: one.index)]
    np.testing.assert_allclose(found, similarities, atol=1e-5, err_msg="the default prompt is not used in a search")
    for place, beside in (("ours", sentence_files(tmp_path / "theirs", loaded.config)), ("new", {})):
        save_model(
            tmp_path / place, loaded.model, tokenizer_files=loaded.tokenizer_files, meta=loaded.meta, beside=beside
        )
        again = sentence_transformers.SentenceTransformer(str(tmp_path / place), device="cpu")
        np.testing.assert_allclose(again.encode(TEXTS), wanted, atol=1e-5)

"""Static models, a vector for each token: folders as model2vec and sentence-transformers write them, and ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.heads import HeadConfig
from compress.encoder.modules.model import Model
from compress.encoder.modules.static import finish_static, keep_silent
from compress.errors import UserError
from compress.modelfolder.families.model2vec import make_static_config
from compress.modelfolder.folder import FolderMeta, inspect, load_model, save_model
from compress.predict.embedder import Embedder

TEXTS = ["she said the film was good", "", "dull"]
WIDTH = 6


@pytest.fixture
def theirs(tmp_path: Path, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]) -> Path:
    """A folder as model2vec 0.10 writes it."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    table = torch.randn(len(toy_vocabulary), WIDTH, generator=torch.Generator().manual_seed(0))
    save_file({"embeddings": table.half()}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_bytes(toy_tokenizer_files["tokenizer.json"])
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": False, "max_length": None}
    (folder / "config.json").write_text(json.dumps(config))
    modules = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_a_text_is_the_mean_of_its_tokens(theirs: Path) -> None:
    embedder = Embedder(theirs)
    table = load_file(theirs / "model.safetensors")["embeddings"].float().numpy()
    ids = embedder.tokenizer.encode_plain(TEXTS, words=False)
    rows = [table[ids.ids[a:b]] for a, b in zip(ids.offsets, ids.offsets[1:], strict=False)]
    wanted = [row.mean(0) if len(row) else np.zeros(WIDTH) for row in rows]
    np.testing.assert_allclose(embedder(TEXTS), wanted, atol=1e-6)
    info = inspect(theirs)
    assert info.config.is_static
    assert info.parameters_without_embeddings == 0


def test_it_is_written_as_both_programs_read_it(theirs: Path, tmp_path: Path) -> None:
    loaded = load_model(theirs)
    head = HeadConfig("embedding", labels=WIDTH, pooling="mean", normalize=True)
    model = Model(loaded.config, {"task": head})
    model.load_state_dict(loaded.model.state_dict())
    made = save_model(
        tmp_path / "made",
        finish_static(model),
        tokenizer_files=loaded.tokenizer_files,
        meta=FolderMeta(task="embedding", max_length=2),  # of the data that a stage reads
    )
    assert (inspect(made).meta.max_length, Embedder(made).max_length) == (None, model.config.max_positions)
    assert load_file(made / "model.safetensors")["embeddings"].dtype is torch.float16
    config = json.loads((made / "config.json").read_text())
    assert (config["normalize"], config["max_length"], config["model_type"]) == (True, None, "model2vec")
    kinds = [row["type"].rpartition(".")[2] for row in json.loads((made / "modules.json").read_text())]
    assert kinds == ["StaticEmbedding", "Normalize"]
    card = (made / "README.md").read_text()
    assert "StaticEmbedding" in card
    assert 'vectors = SentenceTransformer("<this folder>").float().encode(["a text"])' in card.splitlines()
    vectors = Embedder(theirs)(TEXTS)
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(Embedder(made)(TEXTS), vectors / lengths, atol=1e-5)


def test_what_is_not_read_is_named(theirs: Path) -> None:
    table = load_file(theirs / "model.safetensors")["embeddings"]
    clusters = {"embeddings": table[:4].contiguous(), "mapping": torch.zeros(len(table), dtype=torch.int64)}
    save_file(clusters, theirs / "model.safetensors")
    with pytest.raises(UserError, match="a vocabulary in clusters is not supported"):
        load_model(theirs)
    save_file({"other": table}, theirs / "model.safetensors")
    with pytest.raises(UserError, match="no matrix 'embeddings' in the weights"):
        load_model(theirs)


@pytest.mark.parametrize("other", [{"segments": 2}, {"pooler": True}, {"positions": "learned"}, {"embedding": 3}])
def test_a_static_config_has_nothing_but_its_table(other: dict[str, object]) -> None:
    values = make_static_config(9, 4).to_dict()
    assert EncoderConfig.from_dict(values) == make_static_config(9, 4)
    with pytest.raises(UserError, match=f"a static model has no {next(iter(other))}"):
        EncoderConfig.from_dict(values | other)


def test_rows_of_zeros_stay_zero_in_training() -> None:
    model = Model(make_static_config(5, 3))
    weight = model.encoder.embeddings.word.weight
    with torch.no_grad():
        weight[2] = 0
    keep_silent(model)
    weight.sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().sum(1).tolist() == [0, 3, 0, 3, 3]  # the padding's row is zero too

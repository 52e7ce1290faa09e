"""What transformers itself answers with a folder, packed as our batches are, for each kind of head."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from compress.contracts import Batch
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.heads import HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import FolderMeta, load_model, save_model
from compress.onnx.check import model_answer
from compress.onnx.stock import stock_answer

pytest.importorskip("transformers")

KINDS = {
    "classification": HeadConfig("classification", labels=3),
    "token-classification": HeadConfig("token_classification", labels=3),
    "question-answering": HeadConfig("question_answering", labels=2),
}
LENGTHS = (5, 2, 7)


def batch() -> Batch:
    random = torch.Generator().manual_seed(0)
    tokens, ends = sum(LENGTHS), torch.tensor([0, *np.cumsum(LENGTHS)])
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    segments = (positions > 2).long()  # a second text in the longer rows
    ids = torch.randint(5, 60, (tokens,), generator=random)
    return Batch(ids, segments, positions, ends, max(LENGTHS), torch.arange(len(LENGTHS)))


def saved(folder: Path, files: dict[str, bytes], config: EncoderConfig, kind: str | None) -> Path:
    heads = {"mlm": HeadConfig("masked_lm")} if kind is None else {"task": KINDS[kind]}
    model = Model(config, heads).initialize(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)), alpha=0.1)
    labels = () if kind in (None, "question-answering") else ("a", "b", "c")
    meta = FolderMeta(family="bert", task=kind, label_names=labels)
    return save_model(folder / "m", model, tokenizer_files=files, meta=meta)


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_they_are_those_of_our_model(
    kind: str | None, tmp_path: Path, toy_tokenizer_files: dict[str, bytes], tiny_config: EncoderConfig
) -> None:
    folder = saved(tmp_path, toy_tokenizer_files, tiny_config, kind)
    loaded = load_model(folder)
    theirs = stock_answer(folder, loaded)(batch())
    ours = model_answer(loaded.model.eval(), None if kind is None else "task")(batch())
    rows = len(LENGTHS) if kind == "classification" else sum(LENGTHS)
    assert len(theirs) == rows
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_of_several_classes_the_first_answers(
    tmp_path: Path, toy_tokenizer_files: dict[str, bytes], tiny_config: EncoderConfig
) -> None:
    folder = saved(tmp_path, toy_tokenizer_files, tiny_config, "classification")
    loaded = load_model(folder)
    before = stock_answer(folder, loaded)(batch())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["architectures"].append("BertModel")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    np.testing.assert_array_equal(stock_answer(folder, loaded)(batch()), before)

"""`compress share` of every family: the command, its folder read again bit for bit, its answers, its ONNX graph; and in
transformers' own class where there is one that computes it.

The checkpoints are random and tiny, as transformers writes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import e2e_toy as toy
import foreign_tokenizers
import numpy as np
import pytest
import torch
from e2e_toy import Cli
from stock_classes import config_class
from test_families_verbs import FAMILIES

from compress.contracts import Needs
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import load_model, save_model
from compress.modelfolder.weights import weight_files
from compress.storage import safe

pytestmark = pytest.mark.thorough

RECIPE = f"""
extends: share
description: conversion alone on a toy
data: {{max_length: 24}}
{toy.QUICK}
stages:
  0: {{residual_rank: 0, embedding: null}}
"""
APART = {"albert": {"num_hidden_layers": 4, "num_hidden_groups": 4, "embedding_size": 8}}
"""A model whose layers share nothing yet."""
FACTORIZED = ("albert", "electra")
"""Families whose tables are a product already."""


def checkpoint(work: Path, family: str, **changes: Any) -> Path:
    """A random folder of the family, fine-tuned in name, for the toy data's labels."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    files = foreign_tokenizers.of_family(family, [row["text"] for rows in toy.opinions().values() for row in rows])
    tokenizer, (classes, values) = Tokenizer(files), FAMILIES[family]
    config = config_class(transformers, classes)(
        **{**values, **APART.get(family, {}), **changes}, vocab_size=tokenizer.vocabulary_size,
        pad_token_id=tokenizer.pad_id, initializer_range=0.3, id2label={0: "negative", 1: "positive"},
    )  # fmt: skip
    torch.manual_seed(3)
    folder = work / family
    getattr(transformers, f"{classes}ForSequenceClassification")(config).save_pretrained(folder)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (work / "share.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


def shared(compress: Cli, folder: Path, *flags: str) -> Path:
    done = compress(
        "share", folder, "--recipe", "./share.yaml", "--data", "data", "--no-recover", "--output", "runs/s", *flags
    )  # fmt: skip
    assert done.code == 0, done.err
    return Path("runs/s/model")


def padded(vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = (torch.arange(9) < torch.tensor([[9], [4]])).long()
    ids = torch.randint(5, vocabulary, (2, 9), generator=torch.Generator().manual_seed(1))
    return ids * mask, mask


def answers(model: Model) -> torch.Tensor:
    ids, mask = padded(model.config.vocabulary)
    with torch.no_grad():
        logits = model.forward_padded(ids, mask, None, Needs(logits=True)).logits
    assert logits is not None
    return logits


def as_onnx(model: Model) -> np.ndarray:
    pytest.importorskip("onnxruntime")
    from compress.onnx.encoder import encode
    from compress.onnx.session import OnnxSession

    session = OnnxSession(encode(model, "task").SerializeToString(), threads=1)
    ids, mask = padded(model.config.vocabulary)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return session.infer({name: given[name].numpy() for name in session.inputs})[0]


def check(folder: Path, again: Path) -> Model:
    """Read, written and read again: the same bytes and answers; the graph answers alike."""
    loaded = load_model(folder)
    model = loaded.model.eval()
    save_model(again, model, tokenizer_files=loaded.tokenizer_files, meta=loaded.meta)
    first, second = (
        {name: tensor for file in weight_files(place) for name, tensor in safe.load_safetensors(file).items()}
        for place in (folder, again)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(answers(load_model(again).model.eval()), answers(model))
    assert answers(model).std() > 1e-3
    np.testing.assert_allclose(as_onnx(model), answers(model).numpy(), atol=2e-5, rtol=0)
    assert sum(t.numel() for t in first.values()) == sum(p.numel() for p in model.parameters())
    return model


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "longformer"])
def test_layers_of_every_family_share(family: str, work: Path, compress: Cli) -> None:
    parent = checkpoint(work, family)
    folder = shared(compress, parent, "--groups", "2", "--residual-rank", "2", "--init", "activation")
    model, before = check(folder, work / "again"), load_model(parent).model
    assert model.config.sharing is not None
    assert len(set(model.config.sharing.attention)) == 2
    assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in before.parameters())


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in FACTORIZED])
def test_tables_of_every_family_become_a_product(family: str, work: Path, compress: Cli) -> None:
    folder = shared(compress, checkpoint(work, family), "--pattern", "none", "--embedding-size", "6")
    model = check(folder, work / "again")
    assert (model.config.width, model.config.hidden) == (6, 16)
    assert model.config.sharing is None


@pytest.mark.parametrize("family", FACTORIZED)
def test_a_product_is_not_taken_apart_again(family: str, work: Path, compress: Cli) -> None:
    folder = checkpoint(work, family)
    command = ("share", folder, "--recipe", "./share.yaml", "--data", "data", "--no-recover", "--output", "runs/s")
    done = compress(*command, "--pattern", "none", "--embedding-size", "4")
    assert done.code == 2
    assert "the embeddings are already factorized, 8 x 16; remove embedding" in done.line


@pytest.mark.parametrize("groups", [1, 2])
def test_an_albert_that_shares_whole_layers_is_one_of_transformers(groups: int, work: Path, compress: Cli) -> None:
    import transformers

    parent = checkpoint(work, "albert")
    folder = shared(compress, parent, "--groups", str(groups), "--share-norms-and-biases")
    model = check(folder, work / "again")
    assert model.config.layer_groups == ((0, 0, 0, 0) if groups == 1 else (0, 0, 1, 1))
    theirs, told = transformers.AlbertForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"]
    assert theirs.config.num_hidden_groups == groups
    ids, mask = padded(model.config.vocabulary)
    with torch.no_grad():
        logits = theirs.eval()(input_ids=ids, attention_mask=mask).logits
        hidden = transformers.AlbertModel.from_pretrained(folder).eval()(ids, mask).last_hidden_state
    torch.testing.assert_close(answers(model), logits, rtol=1e-5, atol=1e-5)
    ours = model.forward_padded(ids, mask).last_hidden
    torch.testing.assert_close(ours[mask.bool()], hidden[mask.bool()], rtol=1e-5, atol=1e-5)

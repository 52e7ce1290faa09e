"""Matrices that are products of two: counted, refused where they make no sense, cut with their layers, stored."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from encoder_helpers import UNIFORM, VARIATIONS, batch, model, needs

from compress.encoder.config.encoder import EncoderConfig, LayerShape
from compress.encoder.config.low_rank import break_even
from compress.encoder.config.sharing import Sharing
from compress.encoder.config.unsupported import refuse_low_rank
from compress.encoder.modules.layers import LowRankLinear
from compress.encoder.reshape.students import take_layers
from compress.errors import UserError
from compress.modelfolder.folder import load_model, save_model

CONFIG = VARIATIONS["low rank"]


def test_computes_the_product() -> None:
    part = LowRankLinear(6, 4, 2)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.normal_()
    x = torch.randn(5, 6)
    expected = x @ (part.outer.weight @ part.inner.weight).T + part.outer.bias
    torch.testing.assert_close(part(x), expected)


@pytest.mark.parametrize(("out", "inputs"), [(384, 384), (1536, 384), (7, 5), (2, 1)])
def test_break_even_is_the_last_that_saves(out: int, inputs: int) -> None:
    rank = break_even(out, inputs)
    assert rank * (out + inputs) < out * inputs <= (rank + 1) * (out + inputs)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((("attention.queri", 2),), "'attention.queri' is not a matrix of a layer"),
        ((("attention.query", 0),), "attention.query"),
        ((("attention.query", 16),), "rank 16 of attention.query is too large: it is 16 x 16; use 1..15"),
        ((("attention.query", 2), ("attention.query", 3)), "listed twice"),
        ((("attention.query",),), "each entry is a matrix and its rank"),
        (7, "ranks must be an object of matrices"),
    ],
)
def test_refused(ranks: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        dataclasses.replace(UNIFORM, layers=(LayerShape(4, 4, 24, ranks),) * 3)  # pyright: ignore
    assert "encoder.layers.0.ranks" in str(caught.value)
    assert message in str(caught.value)


def test_not_beside_matrices_that_are_shared_apart() -> None:
    with pytest.raises(UserError, match="share only some of their parameters cannot have low-rank factors"):
        dataclasses.replace(CONFIG, sharing=Sharing((0, 1, 2), (0, 1, 1)))


def test_reads_the_object_that_json_holds() -> None:
    values = CONFIG.to_dict()
    values["layers"][0]["ranks"] = {"attention.key": 3}
    assert EncoderConfig.from_dict(values).layers[0].ranks == (("attention.key", 3),)
    assert "ranks" not in values["layers"][1]
    assert repr(CONFIG.layers[1]) == "LayerShape(heads=4, head_width=4, feed_forward=24)"


def test_layers_keep_their_ranks_when_others_go() -> None:
    whole = model(CONFIG)
    cut = take_layers(whole, [0, 2])
    assert cut.config.layers == (CONFIG.layers[0], CONFIG.layers[2])
    b = batch([5, 9], CONFIG)
    alone = take_layers(whole, [0])
    states = whole(b, needs(CONFIG)).hidden_states
    got = alone(b, needs(CONFIG)).hidden_states
    assert states is not None
    assert got is not None
    assert torch.equal(got[1], states[1])


def test_operations_that_read_whole_matrices_say_so() -> None:
    with pytest.raises(UserError, match="low-rank factors already, and sharing needs full matrices"):
        refuse_low_rank(CONFIG, "sharing", "here")


def test_folder_reloads_to_the_same_bits(tmp_path: Path, toy_tokenizer_files: dict[str, bytes]) -> None:
    rows = len(toy_tokenizer_files["vocab.txt"].splitlines())
    config = dataclasses.replace(CONFIG, vocabulary=rows)
    made = model(config)
    saved = save_model(tmp_path / "m", made, tokenizer_files=toy_tokenizer_files)
    again = load_model(saved)
    assert again.config == config
    assert "its layers have low-rank factors" in (saved / "README.md").read_text()
    assert all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in made.state_dict().items())

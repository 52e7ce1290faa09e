"""The public functions on modules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "encoder"))
from encoder_helpers import RELAXED, VARIATIONS, batch

import compress
from compress.contracts import Needs
from compress.encoder.modules.model import Model


def test_a_linear_layer_of_full_rank_is_the_same() -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(6, 4), torch.randn(3, 6)
    made = compress.factorize_linear(linear, 4)
    assert torch.allclose(made(x), linear(x), atol=1e-5)
    smaller = compress.factorize_linear(linear, 2)
    error = torch.linalg.matrix_norm(linear.weight - smaller.outer.weight @ smaller.inner.weight)
    assert error.item() == pytest.approx(torch.linalg.svdvals(linear.weight)[2:].norm().item(), rel=1e-4)
    assert smaller.outer.bias is not linear.bias
    with pytest.raises(compress.UserError, match=r"allowed: 1\.\.4"):
        compress.factorize_linear(linear, 5)


def test_layers_heads_and_neurons(tiny_model: Model) -> None:
    assert compress.take_layers(tiny_model, [1]).config.depth == 1
    cut = compress.take_heads_and_neurons(tiny_model, heads=[[0], [1]], neurons=[range(8), range(4)])
    assert [(s.heads, s.feed_forward) for s in cut.config.layers] == [(1, 8), (1, 4)]
    with pytest.raises(compress.UserError, match="1 lists of heads for 2 layers"):
        compress.take_heads_and_neurons(tiny_model, heads=[[0]])


def test_layers_that_share(tiny_model: Model) -> None:
    shared = compress.share_layers(tiny_model, [0, 0])
    assert sum(p.numel() for p in shared.parameters()) < sum(p.numel() for p in tiny_model.parameters())
    with pytest.raises(compress.UserError, match="1 groups for 2 layers"):
        compress.share_layers(tiny_model, [0])


def test_word_rows(tiny_model: Model) -> None:
    assert compress.keep_word_rows(tiny_model, torch.arange(20)).config.vocabulary == 20


def test_fake_quantize_rounds_to_the_codes_of_its_scheme() -> None:
    scheme = compress.symmetric_scheme(8, "tensor")
    x = torch.tensor([0.04, -1.0, 200.0], requires_grad=True)
    rounded = compress.fake_quantize(x, torch.tensor(0.1), torch.tensor(0.0), scheme)
    assert rounded.tolist() == pytest.approx([0.0, -1.0, 12.7])
    rounded.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0, 0.0]
    assert compress.affine_scheme(8).highest == 255


def test_an_object_of_another_type_is_one_line(tiny_model: Model) -> None:
    other: Any = nn.LayerNorm(4)
    for act in (
        lambda: compress.take_layers(other, [0]), lambda: compress.share_layers(other, [0, 0]),
        lambda: compress.take_heads_and_neurons(other), lambda: compress.keep_word_rows(other, torch.arange(2)),
    ):  # fmt: skip
        with pytest.raises(compress.UserError) as error:
            act()
        assert error.value.line() == (
            "model: this is no network, but an object of the type LayerNorm; "
            "give the network of a model: compress.load(FOLDER).torch_module"
        )
    for linear in (other, tiny_model):
        with pytest.raises(compress.UserError, match=r"linear: this is no torch\.nn\.Linear, but"):
            compress.factorize_linear(linear, 1)


def test_what_is_no_list_is_one_line(tiny_model: Model) -> None:
    wrong: Any
    for wrong in (1, "01", None, {0: 1}, torch.tensor(1)):
        no_list = rf"this is no list, but an object of the type {type(wrong).__name__}; give a list"
        for where, act in {
            "keep": compress.take_layers, "rows": compress.keep_word_rows, "groups": compress.share_layers,
            **({} if wrong is None else {"heads": compress.take_heads_and_neurons}),
        }.items():  # fmt: skip
            with pytest.raises(compress.UserError, match=f"^{where}: {no_list}"):
                act(tiny_model, wrong)
        with pytest.raises(compress.UserError, match=rf"^neurons\[1\]: {no_list}"):
            compress.take_heads_and_neurons(tiny_model, neurons=[[0], wrong])


def test_lists_arrays_and_tensors_are_the_same(tiny_model: Model) -> None:
    for read in (list, np.array, torch.tensor):
        assert compress.take_layers(tiny_model, read([1])).config.depth == 1
        assert compress.keep_word_rows(tiny_model, read([*range(20)])).config.vocabulary == 20
        assert compress.share_layers(tiny_model, read([0, 0])).config.sharing is not None
        cut = compress.take_heads_and_neurons(tiny_model, heads=[read([0]), read([1])])
        assert [layer.heads for layer in cut.config.layers] == [1, 1]


@pytest.mark.parametrize("rows", [[0.5], [True], ["0"], torch.tensor([True]), torch.tensor([0.0]), [[0]]])
def test_rows_are_whole_numbers(tiny_model: Model, rows: Any) -> None:
    with pytest.raises(compress.UserError, match=r"^rows: .* is not the number of a row; give whole numbers"):
        compress.keep_word_rows(tiny_model, rows)


@pytest.mark.parametrize("rank", [0, -1, 2.0])
def test_ranks_that_cannot_be(rank: Any) -> None:
    with pytest.raises(compress.UserError, match=r"rank: rank .* is not possible: allowed: 1\.\.4"):
        compress.factorize_linear(nn.Linear(6, 4), rank)


def test_a_factorized_layer_keeps_its_type_and_mode() -> None:
    linear = nn.Linear(6, 4, bias=False).to(torch.bfloat16).eval()
    made = compress.factorize_linear(linear, int(np.int64(2)))
    assert compress.factorize_linear(linear, np.int64(2)).inner.weight.equal(made.inner.weight)  # type: ignore[arg-type]
    assert (made.inner.weight.dtype, made.outer.bias, made.training) == (torch.bfloat16, None, False)
    with torch.no_grad():
        linear.weight[0, 0] = float("nan")
    with pytest.raises(compress.UserError, match="linear: the weight contains NaN or infinite values"):
        compress.factorize_linear(linear, 2)


def test_a_part_that_no_layer_has_is_named(tiny_model: Model) -> None:
    with pytest.raises(compress.UserError, match="'attn' is not a part of a layer; did you mean 'attention'"):
        compress.share_layers(tiny_model, [0, 0], parts="attn")  # type: ignore[arg-type]


@pytest.mark.parametrize(("parts", "shared"), [("attention", ["attention"]), ("feed_forward", ["feed_forward"])])
def test_only_the_named_part_is_shared(tiny_model: Model, parts: Any, shared: list[str]) -> None:
    sharing = compress.share_layers(tiny_model, [7, 7], parts=parts).config.sharing
    assert sharing is not None
    assert [part for part in ("attention", "feed_forward") if sharing.groups(part) == (0, 0)] == shared


@pytest.mark.parametrize("name", ["shared", "own vectors", "residuals", "residuals alone"])
def test_layers_that_share_already_are_grouped_anew(name: str) -> None:
    model = Model((VARIATIONS | RELAXED)[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)), alpha=0.1)
        texts = batch([4, 3])
        again = compress.share_layers(model, range(model.config.depth))
        torch.testing.assert_close(again(texts, Needs()).last_hidden, model(texts, Needs()).last_hidden)
    assert compress.share_layers(model, [0] * model.config.depth).config.sharing is not None


def test_a_model_of_low_rank_does_not_share() -> None:
    with pytest.raises(compress.UserError, match="low-rank factors already, and sharing its layers needs full"):
        compress.share_layers(Model(VARIATIONS["low rank"]), [0, 0, 0])


def test_heads_are_named_once_in_order_and_exist(tiny_model: Model) -> None:
    for heads in ([[0, 0], [0]], [[1, 0], [0]], [[-1], [0]], [[2], [0]], [[], [0]]):
        with pytest.raises(compress.UserError, match="layer 0: "):
            compress.take_heads_and_neurons(tiny_model, heads=heads)

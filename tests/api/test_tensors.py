"""The public functions on modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import compress
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

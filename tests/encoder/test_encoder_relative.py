"""Relative position biases: the buckets of distances, gradients, and layers whose heads differ."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from encoder_helpers import UNIFORM, VARIATIONS, batch, model

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.relative import Disentangled, RelativeBias
from compress.encoder.modules.layout import PackedLayout
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import KeptUnits, prune_units
from compress.encoder.reshape.extend import extend_config
from compress.errors import UserError
from compress.stages.share.conversion import refuse_own_biases

DEBERTA = VARIATIONS["deberta"]
MPNET = VARIATIONS["mpnet"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("config", [MPNET, DEBERTA], ids=["mpnet", "deberta"])
def test_the_table_learns_the_same_in_both_layouts_and_step_by_step(config: EncoderConfig, training: bool) -> None:
    made = model(config).double().train(training)
    for module in made.modules():
        for name in ("p", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    made.encoder.config = dataclasses.replace(config, dropout=0.0)
    rows = batch([9, 9, 3, 30], config)
    holder = made.encoder.relative or made.encoder.distances
    assert holder is not None
    table, grads = holder.weight, []
    ids = torch.zeros(4, 30, dtype=torch.long)
    mask = torch.arange(30) < rows.cu_seqlens.diff()[:, None]
    ids[mask] = rows.input_ids
    for run in (
        lambda: made(rows).last_hidden,
        lambda: made(rows, Needs(attentions=True)).last_hidden,
        lambda: made.forward_padded(ids, mask).last_hidden[mask],
    ):
        made.zero_grad()
        run().square().sum().backward()
        assert table.grad is not None
        grads.append(table.grad.clone())
    assert grads[0].abs().min(1).values.count_nonzero() >= 7  # every bucket but one is met
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(grads[2], grads[0], rtol=1e-9, atol=1e-9)


def test_pruned_heads_take_their_biases_along() -> None:
    whole = model(MPNET)
    heads = ((0, 3), (1, 2), (0, 1, 2, 3))
    kept = dataclasses.replace(KeptUnits.everything(MPNET), heads=heads)
    made = prune_units(whole, kept)
    assert made.config.relative_bias == RelativeBias(8, 16, shared=False)
    assert made.config.count_parameters() == sum(p.numel() for p in made.encoder.parameters())
    for layer, rows in zip(made.encoder.layers, heads, strict=True):
        assert torch.equal(layer.attention.relative.weight, whole.encoder.relative.weight[:, list(rows)])  # type: ignore
    assert EncoderConfig.from_dict(made.config.to_dict()) == made.config
    neurons = dataclasses.replace(KeptUnits.everything(MPNET), neurons=((0, 1),) * 3)
    assert prune_units(whole, neurons).config.relative_bias == MPNET.relative_bias
    with pytest.raises(UserError, match="each layer of this model has its own relative position biases"):
        refuse_own_biases(made.config, "model")


def test_layers_of_different_heads_have_tables_of_their_own() -> None:
    config = dataclasses.replace(VARIATIONS["uneven"], relative_bias=RelativeBias())
    assert config.relative_bias == RelativeBias(shared=False)
    assert "relative_bias" not in UNIFORM.to_dict()
    assert Model(config).encoder.relative is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"buckets": 6}, "buckets is 6: it must be a multiple of 4"),
        ({"buckets": 64, "max_distance": 16}, "max_distance is 16: it must be 17..1048576"),
        ({"shared": 1}, "shared must be true or false"),
    ],
)
def test_bad_values(values: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        RelativeBias(**values)
    assert message in str(error.value)


@pytest.mark.parametrize("config", [MPNET, DEBERTA], ids=["mpnet", "deberta"])
def test_the_way_of_a_gpu_gives_the_same(config: EncoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    made, given = model(config), batch([9, 9, 3, 30], config)
    expected = made(given).last_hidden
    monkeypatch.setattr(PackedLayout, "pads", True)
    given = batch([9, 9, 3, 30], config)  # the layout of the first is kept with it
    torch.testing.assert_close(made(given).last_hidden, expected, rtol=1e-4, atol=1e-4)


def test_one_token_alone_and_many_lengths_at_once() -> None:
    made = model(DEBERTA)
    for rows in ([1], [1, 1, 30, 2], [64, 1]):
        given = batch(rows, DEBERTA)
        alone = []
        for start, length in zip(given.cu_seqlens.tolist(), rows, strict=False):
            alone.append(made.forward_padded(given.input_ids[None, start : start + length]).last_hidden[0])
        torch.testing.assert_close(made(given).last_hidden, torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_attention_maps_of_distances_are_not_cached() -> None:
    from compress.stages.distill.cache.fields import Settings, fields_of

    for config in (MPNET, DEBERTA):
        with pytest.raises(UserError, match="attention maps of a teacher with relative positions cannot be cached"):
            fields_of(Needs(attentions=True), config, {}, Settings())
        assert fields_of(Needs(projections=True), config, {}, Settings())


def test_what_disentangled_attention_cannot_be() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"span": 8, "max_distance": 4}, "max_distance is 4: it must be 6"),
        ({"span": 4, "norm": 1}, "norm must be true or false"),
        ({"span": 4, "content_to_position": False, "position_to_content": False}, "neither content_to_position nor"),
    ]
    for values, message in cases:
        with pytest.raises(UserError, match=message):
            Disentangled(**values)
    with pytest.raises(UserError, match="positions: none needs disentangled attention"):
        dataclasses.replace(UNIFORM, positions="none")
    with pytest.raises(UserError, match="relative_bias and disentangled cannot be used together"):
        dataclasses.replace(DEBERTA, relative_bias=RelativeBias())
    with pytest.raises(UserError, match="a model without position embeddings cannot be extended"):
        extend_config(DEBERTA, 128)


def test_windows_are_refused() -> None:
    with pytest.raises(UserError, match="attention windows are not supported in a model with relative positions"):
        extend_config(MPNET, 128, window=4)
    assert extend_config(MPNET, 128).max_positions == 128

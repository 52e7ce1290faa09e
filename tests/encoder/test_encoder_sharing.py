"""Layers that share matrices: one tensor in memory whatever is done to the model, counted once, told when apart."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from encoder_helpers import RELAXED, UNIFORM, VARIATIONS, batch, model, needs, padded
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, LayerShape
from compress.encoder.config.sharing import Sharing, build_contiguous_groups, renumber_groups
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import check_tied, dense_weight
from compress.encoder.reshape.students import take_layers
from compress.errors import UserError


def logits(built: Any, config: EncoderConfig) -> torch.Tensor:
    return built(batch([5, 3, 9], config), Needs(logits=True)).logits


@pytest.mark.parametrize("name", RELAXED)
def test_parameters_are_those_that_the_config_counts(name: str) -> None:
    config = RELAXED[name]
    built = model(config)
    heads = sum(head.count_parameters(config) for head in built.head_configs.values())
    assert sum(p.numel() for p in built.parameters()) == config.count_parameters() + heads
    assert len(built.state_dict()) == len({t.data_ptr() for t in built.state_dict().values()})
    assert EncoderConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("name", RELAXED)
def test_packed_padded_and_prepared_agree(name: str) -> None:
    config = RELAXED[name]
    built, b = model(config), batch([5, 5, 30, 2], config)
    ids, mask, segments = padded(b, extra=2)
    kinds = dataclasses.replace(needs(config), attentions=False, attention_scores=False)
    packed, wide = built(b, kinds), built.forward_padded(ids, mask, segments, kinds)
    torch.testing.assert_close(wide.last_hidden[mask.bool()], packed.last_hidden, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(wide.logits, packed.logits, rtol=1e-4, atol=1e-4)
    got = prepare(built)(b, kinds)
    torch.testing.assert_close(got.last_hidden, packed.last_hidden, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.vocabulary.logits(), packed.vocabulary.logits(), rtol=1e-4, atol=1e-4)  # pyright: ignore


@pytest.mark.parametrize("name", RELAXED)
def test_what_is_shared_stays_one_tensor(name: str) -> None:
    """Through a training step, a copy, a cast, `load_state_dict` of either kind, and a student of all layers."""
    config = RELAXED[name]
    built = model(config).train()
    optimizer = torch.optim.AdamW(built.parameters(), lr=1e-2)
    logits(built, config).square().sum().backward()
    optimizer.step()
    built.eval()
    with torch.device("meta"):
        empty = Model(config, built.head_configs)
    empty.load_state_dict(built.state_dict(), assign=True)
    loaded = Model(config, built.head_configs)
    loaded.load_state_dict(built.state_dict())
    expected = logits(built, config)
    for other in (copy.deepcopy(built), empty.eval(), loaded.eval(), take_layers(built, [0, 1, 2]).eval()):
        assert other.config == config
        torch.testing.assert_close(logits(other, config), expected, rtol=1e-5, atol=1e-5)
        assert shared_pointers(other) == shared_pointers(built)
    assert shared_pointers(built.double().float()) == shared_pointers(model(config))
    check_tied(built, loaded.state_dict(), "here")


def shared_pointers(built: Model) -> list[list[bool]]:
    """For each matrix: which pairs of layers have one and the same tensor."""
    found = []
    for part, names in (("attention", ("query", "output")), ("feed_forward", ("up", "down"))):
        for name in names:
            tensors = [getattr(getattr(layer, part), name).weight.data_ptr() for layer in built.encoder.layers]
            found.append([a == b for a in tensors for b in tensors])
    return found


def test_prepared_layers_pack_what_they_share_once() -> None:
    from compress.encoder.infer.prepare import can_pack

    if not can_pack("fp32"):
        pytest.skip("this build packs nothing")
    twin = prepare(model(RELAXED["residuals"])).model
    layers: Any = twin.encoder.layers
    packs = {id(layer.attention.projection.packed) for layer in layers}
    assert len(packs) == 1


def test_a_layer_that_is_left_alone_takes_up_its_residual() -> None:
    config = RELAXED["residuals"]
    built = model(config)
    alone = take_layers(built, [1])
    assert alone.config.sharing is None
    ours: Any = alone.encoder.layers[0]
    theirs: Any = built.encoder.layers[1]
    assert torch.equal(ours.attention.query.weight, dense_weight(theirs.attention.query))
    two = take_layers(built, [1, 2])
    assert two.config.sharing == Sharing((0, 0), (0, 0), residual_rank=3)


def test_one_spelling() -> None:
    whole = dataclasses.replace(UNIFORM, sharing=Sharing((0, 1, 0), (0, 1, 0), own_vectors=False))
    assert whole == VARIATIONS["shared"]
    assert dataclasses.replace(UNIFORM, sharing=Sharing((0, 1, 2), (0, 1, 2), residual_rank=4)) == UNIFORM
    assert dataclasses.replace(UNIFORM, project_first=True) == UNIFORM


@given(st.integers(1, 30), st.data())
def test_contiguous_groups_cover_every_layer_in_order(depth: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, depth))
    groups = build_contiguous_groups(depth, count)
    assert len(groups) == depth
    assert list(groups) == sorted(groups)
    assert renumber_groups(groups) == groups
    sizes = [groups.count(g) for g in set(groups)]
    assert len(sizes) == count
    assert max(sizes) - min(sizes) <= 1


def test_a_module_that_got_its_own_tensor_is_told() -> None:
    built = model(RELAXED["own vectors"])
    layer: Any = built.encoder.layers[1]
    layer.attention.query = nn.Linear(16, 16)
    with pytest.raises(UserError) as error:
        check_tied(built, Model(built.config, built.head_configs).state_dict(), "runs/x")
    assert str(error.value) == (
        "runs/x: 'encoder.layers.1.attention.query.weight' is not tied: the config shares this tensor between layers, "
        "but the model has separate tensors; create the model from its config and load the weights into it"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sharing": Sharing((0, 0), (0, 0, 1))}, "encoder.sharing.attention: 2 entries for 3 layers"),
        (
            {"sharing": Sharing((0, 2, 1), (0, 0, 1))},
            "encoder.sharing.attention: entry 1 is 2: groups are numbered 0, 1, 2.. as they appear; use 1",
        ),
        (
            {"sharing": Sharing((0, 0, 0), (0, 0, 0), residual_rank=17)},
            "encoder.sharing.residual_rank: residual rank 17 is too large: the smallest matrix has rank 16; use at "
            "most 16",
        ),
        (
            {"sharing": Sharing((0, 0, 0), (0, 0, 0)), "layer_groups": (0, 0, 0)},
            "encoder.sharing: sharing and layer_groups cannot be used together; remove one of them",
        ),
        (
            {
                "layers": (LayerShape(4, 4, 24), LayerShape(2, 4, 24), LayerShape(4, 4, 24)),
                "sharing": Sharing((0, 0, 1), (0, 0, 0)),
            },
            "encoder.sharing.attention: layers 0 and 1 are in one group but have different shapes: 4 heads of width 4 "
            "and 2 heads of width 4; share only layers of the same shape",
        ),
    ],
)
def test_bad_sharing(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        dataclasses.replace(UNIFORM, **changes)
    assert str(error.value) == message


def test_a_narrow_layer_that_shares_nothing_does_not_bound_the_residuals_of_others() -> None:
    thin = (LayerShape(1, 2, 1), LayerShape(4, 4, 24), LayerShape(4, 4, 24))
    made = dataclasses.replace(UNIFORM, layers=thin, sharing=Sharing((0, 1, 1), (0, 1, 1), residual_rank=4))
    assert made.sharing is not None
    with pytest.raises(UserError, match="residual rank 4 is too large: the smallest matrix has rank 1"):
        dataclasses.replace(made, layers=(thin[1], thin[0], thin[0]))

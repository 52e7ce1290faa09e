"""Layers that share their matrices in a fit: which may, what the pair stores, and that all else stays as it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.modules.model import Model
from compress.fit.make.joined_layers import (
    GRAPH,
    join_layers,
    list_joinable_layers,
    own_megabytes,
    residual_numbers,
    residual_rank,
)
from compress.predict.predictor import build_fixed_batch

HEAD = {"task": HeadConfig("classification", labels=2)}
CONFIG = EncoderConfig.uniform(vocabulary=40, hidden=32, layers=4, heads=2, feed_forward=32, max_positions=16)
THIN = LayerShape(1, 4, 2)


@pytest.mark.parametrize(
    ("changes", "firsts"),
    [
        ({}, [0, 1, 2]),
        ({"layers": (*CONFIG.layers[:1], THIN, *CONFIG.layers[2:])}, [2]),
        ({"layers": CONFIG.layers[:2]}, []),
        ({"layer_groups": (0, 0, 1, 1)}, []),
    ],
    ids=["alike", "one is narrow", "none would be left alone", "they share already"],
)
def test_which_neighbours_may_share(changes: dict[str, Any], firsts: list[int]) -> None:
    assert list_joinable_layers(dataclasses.replace(CONFIG, **changes)) == firsts


def test_what_a_pair_stores_is_what_the_encoder_counts() -> None:
    """The planned megabytes of a pair beside one layer against the parameters of the model that is made."""
    model = Model(CONFIG, HEAD).initialize(0).eval()
    made = join_layers(model, [1], None)
    assert made.config.sharing is not None
    assert made.config.sharing.attention == made.config.sharing.feed_forward == (0, 1, 1, 2)
    assert made.config.sharing.residual_rank == residual_rank(CONFIG) == 4
    without = dataclasses.replace(CONFIG, layers=CONFIG.layers[:3])
    stored = made.config.count_parameters() - without.count_parameters()
    assert 1e6 * (own_megabytes(CONFIG, 1) - 2 * GRAPH) == pytest.approx(4 * stored, rel=0.02)
    assert residual_numbers(CONFIG, 1) == 4 * (4 * (32 + 32) + 2 * (32 + 32))


def test_layers_outside_of_the_pair_stay_and_a_full_rank_changes_nothing() -> None:
    model = Model(CONFIG, HEAD).initialize(0).eval()
    made: Any = join_layers(model, [1], None)
    layers: Any = model.encoder.layers
    for layer in (0, 3):
        ours = made.encoder.layers[layer].attention.query.weight
        assert torch.equal(ours, layers[layer].attention.query.weight)
    same = join_layers(model, [1], None, rank=32)
    batch = build_fixed_batch(CONFIG, 2, 8)
    ours, theirs = (m(batch, Needs(logits=True)).logits for m in (same, model))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)

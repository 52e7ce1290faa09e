"""A model for longer sequences: the table is repeated, everything else is the same tensor for tensor."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from encoder_helpers import UNIFORM, VARIATIONS, batch, model

from compress.encoder.modules.layers import sinusoids
from compress.encoder.reshape.extend import TABLE, extend, extend_config
from compress.errors import UserError


@pytest.mark.parametrize("name", ["bert", "offset", "shared", "factorized", "sinusoidal_start"])
def test_learned_positions_are_repeated_and_short_texts_answered_as_before(name: str) -> None:
    config = VARIATIONS[name]
    old = model(config)
    new = extend(old, extend_config(config, 150))
    table, before = new.state_dict()[TABLE], old.state_dict()[TABLE]
    first = config.position_offset
    assert len(table) == 150 + first
    assert torch.equal(table[: first + 64], before)
    assert torch.equal(table[first + 64 : first + 128], before[first:])
    assert torch.equal(table[first + 128 :], before[first : first + 22])
    for key, tensor in old.state_dict().items():
        if key != TABLE:
            assert torch.equal(new.state_dict()[key], tensor)
    short = batch([64, 9], config)
    assert torch.equal(old(short).last_hidden, new(short).last_hidden)
    assert new(batch([150], config)).last_hidden.isfinite().all()
    with torch.no_grad():  # nothing is shared
        new.encoder.embeddings.word.weight.add_(1)
    assert not torch.equal(new.encoder.embeddings.word.weight, old.encoder.embeddings.word.weight)


def test_fixed_sinusoids_are_computed_further() -> None:
    config = VARIATIONS["sinusoidal"]
    new = extend(model(config), extend_config(config, 150))
    assert torch.equal(new.state_dict()[TABLE], sinusoids(150, config.width))
    assert TABLE not in dict(new.named_parameters())


def test_a_window_brings_one_global_token_and_keeps_what_was_asked_for() -> None:
    made = extend_config(UNIFORM, 200, window=8)
    assert (made.windows, made.global_tokens) == ((8, 8, 8), 1)
    assert extend_config(UNIFORM, 200, window=8, global_tokens=0).global_tokens == 0
    local = dataclasses.replace(UNIFORM, windows=(4, None, 4), global_tokens=2)
    again = extend_config(local, 200)
    assert (again.windows, again.global_tokens) == ((4, None, 4), 2)
    assert extend_config(local, 64, window=3).global_tokens == 2


def test_no_window_where_tokens_are_dropped() -> None:
    dropping = dataclasses.replace(UNIFORM, kept_tokens=(50, 50, 50))
    assert extend_config(dropping, 200).kept_tokens == (50, 50, 50)
    with pytest.raises(UserError, match=r"^--window: the model drops tokens between its layers, so a window cannot"):
        extend_config(dropping, 200, window=8)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"max_positions": 63}, "63 positions are fewer than the model's 64"),
        ({"max_positions": 64}, "the model has 64 positions already"),
        ({"max_positions": 128, "window": 127}, "a window of 127 tokens to each side"),
        ({"max_positions": 128, "window": 0}, "entry 0 is 0"),
        ({"max_positions": 128, "global_tokens": 1}, "without a window every token already attends to all others"),
        ({"max_positions": 128, "window": 8, "global_tokens": 129}, "global_tokens is 129"),
    ],
)
def test_what_changes_nothing_or_cannot_be_is_refused(asked: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        extend_config(UNIFORM, **asked)

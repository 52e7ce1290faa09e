"""A model with windows in Longformer's form: the same outputs, a table that starts behind the padding id, copies of its
own, and the heads that Longformer has."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from encoder_helpers import UNIFORM, batch

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.encoder.reshape.longformer import SEGMENTS, longformer_config, to_longformer
from compress.errors import UserError

WINDOWED = dataclasses.replace(UNIFORM, windows=(4, 4, 4), global_tokens=1)
TABLE = "encoder.embeddings.position.weight"


def model(config: EncoderConfig, *heads: HeadConfig) -> Model:
    built = Model(config, {head.name: head for head in heads}).initialize(0).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return built


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions": "sinusoidal"},
        {"position_offset": 2, "pad_id": 1, "segments": 1, "pooler": False},
        {"segments": 0, "pooler": False},
        {"pad_id": 7},
    ],
    ids=["bert", "fixed positions", "roberta", "no segments", "another padding id"],
)
def test_it_computes_the_same(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(WINDOWED, **changes)
    task = HeadConfig("classification", labels=3, style="bert" if config.pooler else "roberta")
    before = model(config, HeadConfig("masked_lm"), task)
    made_config, heads = longformer_config(config, before.head_configs)
    after = to_longformer(before, made_config, heads)
    assert made_config.position_offset == config.pad_id + 1
    assert made_config.segments >= 1
    assert made_config.pooler is False, "the classification head holds what the pooler was"
    read = batch([9, 7, 2], config)
    with torch.no_grad():
        ours, theirs = (m(read, Needs(logits=True, mlm="all")) for m in (before, after))
    torch.testing.assert_close(theirs.logits, ours.logits)
    assert ours.vocabulary is not None
    assert theirs.vocabulary is not None
    torch.testing.assert_close(theirs.vocabulary.features, ours.vocabulary.features)


def test_the_rows_before_the_table_are_zero_and_nothing_is_shared_with_the_parent() -> None:
    config = dataclasses.replace(WINDOWED, pad_id=2, segments=0, pooler=False)
    before = model(config)
    kept = {name: tensor.clone() for name, tensor in before.state_dict().items()}
    made_config, heads = longformer_config(config, {})
    after = to_longformer(before, made_config, heads)
    state = after.state_dict()
    assert state[TABLE].shape[0] == config.max_positions + 3
    assert not state[TABLE][:3].any()
    assert not state[SEGMENTS].any()
    for layer in range(config.depth):
        at = f"encoder.layers.{layer}.attention."
        for part in ("query", "key", "value"):
            assert torch.equal(state[f"{at}globals.{part}.weight"], state[f"{at}{part}.weight"])
            assert state[f"{at}globals.{part}.weight"].data_ptr() != state[f"{at}{part}.weight"].data_ptr()
    with torch.no_grad():
        for parameter in after.parameters():
            parameter.add_(1)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in before.state_dict().items())


def test_training_goes_on_where_it_was() -> None:
    before = model(WINDOWED)
    before.train()
    for parameter in before.parameters():
        parameter.requires_grad_(False)
    after = to_longformer(before, *longformer_config(WINDOWED, {}))
    assert after.training
    assert all(parameter.requires_grad for parameter in after.parameters())


@pytest.mark.parametrize(
    ("head", "made"),
    [
        (HeadConfig("classification", labels=3), "roberta"),
        (HeadConfig("classification", labels=3, style="roberta", dropout=0.3), "roberta"),
        (HeadConfig("token_classification", labels=3, style="distilbert"), "roberta"),
        (HeadConfig("classification", labels=3, style="electra"), "electra"),
        (HeadConfig("token_classification", labels=3, style="modernbert"), "modernbert"),
    ],
    ids=str,
)
def test_which_heads_can_become_longformers(head: HeadConfig, made: str) -> None:
    """One whose formula is another stays, and the family says why it has no words for it."""
    config = dataclasses.replace(WINDOWED, pooler=head.needs_pooler)
    _, heads = longformer_config(config, {"task": head})
    assert heads["task"].style == made
    assert heads["task"] == head or heads["task"].dropout is None


def test_the_pooler_stays_where_something_reads_it() -> None:
    assert longformer_config(WINDOWED, {})[0].pooler
    assert longformer_config(WINDOWED, {"pair": HeadConfig("sentence_pair")})[0].pooler
    assert not longformer_config(WINDOWED, {"mlm": HeadConfig("masked_lm")})[0].pooler


def test_several_global_tokens_have_no_projections_of_their_own() -> None:
    with pytest.raises(UserError):
        longformer_config(dataclasses.replace(WINDOWED, global_tokens=2), {})

"""Token dropping: which tokens go on, and that each row is answered as if it were alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from early_models import draw_batch, make_early_model, make_plain_model

from compress.contracts import Needs
from compress.data.batches.examples import take_rows
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.token_dropping import count_kept, find_head_obstacle
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.layers import LayerTrace
from compress.encoder.modules.layout import PackedLayout
from compress.encoder.modules.model import Model
from compress.encoder.reshape.dropped_tokens import drop_tokens
from compress.errors import UserError

LOGITS = Needs(logits=True)
KEPT = (70, 30, 30)


def make_dropping_model(kept: tuple[int, ...] = KEPT) -> Model:
    return drop_tokens(make_plain_model(), kept)


def answer_one(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """The logits (1, C) of one text, step by step: after each layer's attention its most attended tokens stay."""
    encoder, length, before = model.encoder, len(ids), 100
    x = encoder.embed(ids, torch.arange(length), torch.zeros_like(ids))
    for layer, percent in zip(encoder.layers, model.config.kept_tokens or (), strict=True):
        trace = LayerTrace(wants_maps=True)

        def take(x: torch.Tensor, trace: LayerTrace = trace, kept: int = count_kept(length, percent)) -> torch.Tensor:
            assert trace.maps is not None
            (shares,) = trace.maps.probabilities
            received = shares.sum((0, 1))
            received[0] = torch.inf
            return x[received.topk(kept).indices.sort().values]

        layout = PackedLayout(torch.tensor([0, len(x)]), len(x))
        x, before = layer(x, layout, trace, between=take if percent < before else None), percent
    assert encoder.pooler is not None
    return model.heads["task"](x[:1], encoder.pooler(x[:1]))


@torch.inference_mode()
def test_the_most_attended_tokens_of_each_row_go_on() -> None:
    model, batch = make_dropping_model(), draw_batch()
    got = model(batch, LOGITS).logits
    assert got is not None
    texts = batch.input_ids.split(batch.cu_seqlens.diff().tolist())
    want = torch.cat([answer_one(model, ids) for ids in texts])
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    whole = make_plain_model()(batch, LOGITS).logits
    assert whole is not None
    assert not torch.allclose(got, whole, atol=1e-2)
    torch.testing.assert_close(prepare(model)(batch, LOGITS).logits, want, atol=1e-4, rtol=1e-4)
    kept = model.keep_tokens(batch)
    assert kept.layout.lengths == [count_kept(len(ids), 30) for ids in texts]
    one = model(take_rows(batch, np.array([5])), LOGITS).logits
    torch.testing.assert_close(one, want[5:6], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_padded_rows_are_answered_as_packed_ones() -> None:
    model, batch = make_dropping_model(), draw_batch(6)
    lengths = batch.cu_seqlens.diff().tolist()
    ids = torch.nn.utils.rnn.pad_sequence(list(batch.input_ids.split(lengths)), batch_first=True)
    mask = torch.arange(ids.shape[1]) < batch.cu_seqlens.diff()[:, None]
    segments = torch.zeros_like(ids)
    got = model.forward_padded(ids, mask, segments, LOGITS).logits
    torch.testing.assert_close(got, model(batch, LOGITS).logits)
    with pytest.raises(UserError, match="computes its logits alone"):
        model.forward_padded(ids, mask, needs=Needs(logits=True, hidden_states=True))


def test_it_learns_and_states_are_those_of_all_tokens() -> None:
    model, batch = make_dropping_model(), draw_batch(8)
    both = model(batch, Needs(logits=True, hidden_states=True))
    torch.testing.assert_close(both.logits, model(batch, LOGITS).logits)
    assert both.hidden_states is not None
    assert both.hidden_states[-1].shape[0] == batch.tokens
    assert both.logits is not None
    both.logits.square().sum().backward()
    attention = model.encoder.layers[0].attention
    assert attention.query.weight.grad.abs().sum() > 0  # type: ignore[union-attr]


def test_whole_numbers_of_tokens() -> None:
    assert [count_kept(n, 30) for n in (1, 2, 10, 11)] == [1, 1, 3, 4]
    assert count_kept(7, 100) == 7


def test_what_cannot_drop_tokens() -> None:
    plain = make_plain_model()
    assert drop_tokens(plain, (100, 100, 100)).config == plain.config, "one spelling for each"
    assert "kept_tokens" not in plain.config.to_dict(), "older versions do not know it"
    config = make_dropping_model().config
    assert EncoderConfig.from_dict(config.to_dict()) == config
    for kept, message in (
        ((50, 50), "one percentage for each layer"),
        ((50, 60, 50), "cannot come back"),
        ((50, 0, 0), "kept_tokens is 0"),
    ):
        with pytest.raises(UserError, match=message):
            drop_tokens(plain, kept)
    for wiring, message in (("distances", "distances between tokens"), ("modernbert", "local attention")):
        with pytest.raises(UserError, match=message):
            drop_tokens(make_plain_model(wiring), KEPT)
    with pytest.raises(UserError, match="early exits"):
        drop_tokens(make_early_model(), KEPT)
    for head, message in (
        (HeadConfig("token_classification"), "a label for every token"),
        (HeadConfig("question_answering"), "at any token"),
        (HeadConfig("embedding", labels=32), "other programs pool"),
        (HeadConfig("classification", style="modernbert", pooling="mean"), "the mean of all tokens"),
        (None, "no task head"),
    ):
        assert message in (find_head_obstacle(head) or "")
        if head is not None:
            with pytest.raises(UserError, match="cannot drop tokens"):
                Model(dataclasses.replace(plain.config, kept_tokens=KEPT), {"task": head})

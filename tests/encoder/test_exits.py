"""Early exits: which rows they answer, and that the others are answered as by the model without exits."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from early_models import EXIT_LAYERS, WIRINGS, draw_batch, make_early_model, make_plain_model
from torch import nn

from compress.contracts import Batch, Needs
from compress.encoder.config.encoder import HeadConfig
from compress.encoder.config.exits import ExitConfig
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.exits import read_exit
from compress.encoder.modules.layout import PackedLayout
from compress.encoder.modules.model import Model
from compress.encoder.reshape.early_exits import add_exits
from compress.errors import UserError

LOGITS = Needs(logits=True)


def answer_whole(model: Model, batch: Batch) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The logits of each exit, and of the model's own head, of all rows."""
    plain = Model(model.config, {"task": dataclasses.replace(model.head_configs["task"], exits=())})
    plain.load_state_dict(model.state_dict(), strict=False)
    found = plain.eval()(batch, Needs(logits=True, hidden_states=True))
    assert found.hidden_states is not None
    assert found.logits is not None
    layout = PackedLayout.of(batch)
    states = [found.hidden_states[layer] for layer in EXIT_LAYERS]
    return [head(read_exit(x, layout)) for head, x in zip(model.exits, states, strict=True)], found.logits


@torch.inference_mode()
@pytest.mark.parametrize("wiring", WIRINGS)
def test_each_row_is_answered_by_the_first_exit_that_is_sure(wiring: str) -> None:
    model, batch = make_early_model(make_plain_model(wiring)), draw_batch()
    early, late = answer_whole(model, batch)
    sure = [logits.softmax(-1).amax(-1) > t for logits, t in zip(early, (0.7, 0.8), strict=True)]
    want = torch.where(sure[0][:, None], early[0], torch.where(sure[1][:, None], early[1], late))
    places = torch.where(sure[0], 0, torch.where(sure[1], 1, 2))
    assert set(places.tolist()) == {0, 1, 2}
    rows = model.answer_early(batch)
    logits, found = rows.logits, rows.places
    assert found.tolist() == places.tolist()
    torch.testing.assert_close(logits, want, atol=1e-5, rtol=1e-5)
    prepared = prepare(model)(batch, LOGITS).logits
    torch.testing.assert_close(prepared, want, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_thresholds_of_0_and_1_are_the_exit_and_the_model_itself() -> None:
    batch = draw_batch()
    for thresholds, which in (((0.0, 0.0), 0), ((1.0, 0.0), 1)):
        model = make_early_model(thresholds=thresholds)
        torch.testing.assert_close(model(batch, LOGITS).logits, answer_whole(model, batch)[0][which])
    model = make_early_model(thresholds=(1.0, 1.0))
    torch.testing.assert_close(model(batch, LOGITS).logits, answer_whole(model, batch)[1])


@torch.inference_mode()
def test_states_are_those_of_all_layers() -> None:
    model, batch = make_early_model(thresholds=(0.0, 0.0)), draw_batch(8)
    both = model(batch, Needs(logits=True, hidden_states=True))
    assert both.hidden_states is not None
    assert len(both.hidden_states) == model.config.depth + 1
    torch.testing.assert_close(both.logits, model(batch, LOGITS).logits)
    with pytest.raises(UserError, match="answers packed rows only"):
        model.forward_padded(torch.ones(1, 4, dtype=torch.int64), needs=LOGITS)


def test_exits_that_are_not_possible() -> None:
    for exits, message in (
        ([ExitConfig(2, 0.5), ExitConfig(1, 0.5)], "in the order of their layers"),
        ([ExitConfig(3, 0.5)], "an exit after layer 3 is not possible"),
    ):
        with pytest.raises(UserError, match=message):
            add_exits(make_plain_model(), exits, [nn.Linear(64, 3) for _ in exits])
    with pytest.raises(UserError, match=r"threshold is 1\.5"):
        ExitConfig(1, 1.5)
    with pytest.raises(UserError, match="only a classification with one label per text"):
        HeadConfig("classification", problem="multi_label", exits=(ExitConfig(1, 0.5),))
    head = HeadConfig("classification", exits=(ExitConfig(1, 0.5),))
    assert HeadConfig.from_dict(head.to_dict()) == head
    assert "exits" not in HeadConfig("classification").to_dict(), "older versions do not know them"
    for rows in (
        {"layer": 1},
        [{"layer": 1}],
        [{"layer": 1, "threshold": 0.5, "x": 1}],
        [{"layer": 0, "threshold": 1}],
    ):
        with pytest.raises(UserError):
            HeadConfig.from_dict({**head.to_dict(), "exits": rows})

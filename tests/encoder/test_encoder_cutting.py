"""Heads and neurons taken out of every kind of encoder: the cut model answers as the masked one does."""

from __future__ import annotations

import pytest
import torch
from encoder_helpers import RELAXED, UNIFORM, VARIATIONS, batch, model, needs, padded

from compress.encoder.config.low_rank import is_low_rank
from compress.encoder.modules.gates import Widths, apply_gates
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import KeptUnits, prune_units, units
from compress.errors import UserError

EVERY = {name: config for name, config in (VARIATIONS | RELAXED).items() if not is_low_rank(config)}


def some(source: Model, seed: int = 0) -> KeptUnits:
    """Some heads and neurons of each unit, other numbers in each where they may differ."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(every: tuple[int, ...]) -> tuple[int, ...]:
        least = 3 if source.config.sharing is not None else 1  # matrices may not be smaller than their residual's rank
        count = int(torch.randint(min(least, len(every)), len(every) + 1, (1,), generator=generator))
        return tuple(sorted(torch.randperm(len(every), generator=generator)[:count].tolist()))

    whole = KeptUnits.everything(source.config)
    return KeptUnits(tuple(map(drawn, whole.heads)), tuple(map(drawn, whole.neurons)))


def outputs(made: Model) -> list[torch.Tensor]:
    config = made.config
    text = batch([5, 3, 9], config)
    with torch.no_grad():
        loose = made(text, needs(config))
        tight = made.forward_padded(*padded(text, extra=1), needs(config))
    found = [loose.last_hidden, loose.logits, tight.logits]
    return [x for x in found if x is not None]


@pytest.mark.parametrize("name", EVERY)
def test_the_cut_model_answers_as_the_masked_one(name: str) -> None:
    source = model(EVERY[name]).double()
    kept = some(source)
    masks = Widths.of(kept, source.config)
    made = prune_units(source, kept)
    with apply_gates(source, masks):
        wanted = outputs(source)
    for ours, theirs in zip(outputs(made), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert made.config == kept.shape(source.config)
    assert made.config.count_parameters() < source.config.count_parameters()
    assert made.config.layer_groups == source.config.layer_groups
    assert made.config.sharing == source.config.sharing
    ours = {id(p) for p in made.parameters()}
    assert not ours & {id(p) for p in source.parameters()}, "nothing is shared with the model that was cut"
    encoder = sum(p.numel() for p in made.encoder.parameters())
    assert encoder == made.config.count_parameters(), "what layers share is stored once"


def test_the_whole_model_is_itself() -> None:
    source = model(UNIFORM)
    same = prune_units(source, KeptUnits.everything(UNIFORM))
    assert all(torch.equal(a, b) for a, b in zip(source.state_dict().values(), same.state_dict().values(), strict=True))


def test_layers_that_share_are_one_unit() -> None:
    assert units(VARIATIONS["shared"], "attention") == ((0, 2), (1,))
    assert units(RELAXED["attention"], "attention") == ((0, 1, 2),)
    assert units(RELAXED["attention"], "feed_forward") == ((0,), (1,), (2,))


def test_products_of_thin_matrices_are_refused() -> None:
    source = model(VARIATIONS["low rank"])
    with pytest.raises(UserError, match=r"width: the model has low-rank factors already, and cutting it needs"):
        prune_units(source, KeptUnits.everything(source.config))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": ((0,), (), (0,))}, "layer 1: no head would be kept; keep one, or drop the layer"),
        ({"neurons": ((0,), (0, 24), (0,))}, r"layer 1: neurons \[0, 24\] cannot be kept: allowed: 0..23, each once"),
        ({"heads": ((1, 0), (0,), (0,))}, r"layer 0: heads \[1, 0\] cannot be kept: allowed: 0..3"),
    ],
)
def test_what_cannot_be_kept(change: dict, message: str) -> None:
    kept = KeptUnits(**{"heads": ((0,),) * 3, "neurons": ((0,),) * 3} | change)
    with pytest.raises(UserError, match=message):
        prune_units(model(UNIFORM), kept)

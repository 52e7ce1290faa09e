"""What two readers need of an output, together; and the vocabulary logits that they share."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from compress.contracts.batch import Batch, Layers, Needs, VocabularyOutput

FLAGS = ("pooled", "logits", "pair_logits", "replaced", "last_hidden")
LAYERS = ("hidden_states", "attentions", "attention_scores", "projections")
NEEDS = st.builds(
    Needs,
    **{name: st.booleans() for name in FLAGS},
    **{name: st.booleans() | st.frozensets(st.integers(-1, 3), min_size=1) for name in LAYERS},
    mlm=st.sampled_from([None, "masked", "all"]),
    temperatures=st.frozensets(st.sampled_from([1.0, 2.0])),
)


def reads(layers: Layers, layer: int) -> bool:
    return layers if isinstance(layers, bool) else layer in layers


@given(NEEDS, NEEDS, NEEDS)
def test_needs_are_joined(a: Needs, b: Needs, c: Needs) -> None:
    both = a | b
    assert both == b | a
    assert (a | b) | c == a | (b | c)
    assert a | a == a | Needs() == a
    for name in FLAGS:
        assert getattr(both, name) == (getattr(a, name) or getattr(b, name))
    for name in LAYERS:
        for layer in range(-1, 4):
            assert reads(getattr(both, name), layer) == any(reads(getattr(one, name), layer) for one in (a, b))
    strength = (None, "masked", "all").index
    assert strength(both.mlm) == max(strength(a.mlm), strength(b.mlm))


def vocabulary(features: torch.Tensor) -> VocabularyOutput:
    return VocabularyOutput(features, torch.arange(6.0).view(3, 2), torch.tensor([0.0, 1.0, 2.0]))


def test_shared_logits_are_computed_once() -> None:
    output = vocabulary(torch.tensor([[1.0, 2.0]], requires_grad=True))
    with torch.no_grad():
        without = output.shared_logits()
        assert output.shared_logits() is without
    kept = output.shared_logits()
    assert kept is not without, "what was computed without a gradient is of no use to a loss"
    assert kept.requires_grad
    assert output.shared_logits() is kept
    assert kept.tolist() == [[2.0, 9.0, 16.0]]


def test_logits_have_the_type_of_their_features() -> None:
    assert vocabulary(torch.ones(1, 2, dtype=torch.bfloat16)).logits().dtype == torch.bfloat16


def test_a_batch_moves_whole() -> None:
    ids = torch.arange(5)
    batch = Batch(ids, ids, ids, torch.tensor([0, 2, 5]), 3, torch.tensor([7, 8]), extra={"seen": ids, "note": "x"})
    assert (batch.rows, batch.tokens) == (2, 5)
    moved = batch.to("meta")
    assert moved.input_ids.is_meta
    assert moved.extra["seen"].is_meta
    assert moved.extra["note"] == "x"
    assert moved.labels is None
    assert not batch.input_ids.is_meta

"""Sequences of like length as one padded block: the same numbers and gradients as sequence by sequence."""

from __future__ import annotations

import pytest
import torch
from encoder_helpers import UNIFORM, batch, model
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.contracts import EncoderOutput, Needs, grid
from compress.contracts.grid import divide
from compress.encoder.modules.blocks import BlockMaps, spread
from compress.encoder.modules.layout import PackedLayout

LENGTHS = [3, 3, 5, 6, 6, 9, 1]


@pytest.fixture
def padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks as on a GPU."""
    monkeypatch.setattr(PackedLayout, "pads", True)


@given(st.lists(st.integers(1, 512), max_size=60), st.booleans())
@settings(max_examples=scaled(50), deadline=None)
def test_a_block_has_at_most_twice_the_pairs(lengths: list[int], ordered: bool) -> None:
    lengths = sorted(lengths) if ordered else lengths
    found = divide(lengths, padded=True)
    assert [length for block in found for length in block] == lengths
    for block in found:
        wide = len(block) * max(block) ** 2
        assert wide <= grid.MOST_PADDING * sum(length**2 for length in block)
        assert len(block) == 1 or wide <= grid.MOST_PAIRS


def test_few_blocks_hold_rows_of_all_lengths() -> None:
    assert len(divide(range(4, 129), padded=True)) < 6
    assert divide([4, 4, 2, 2, 2], padded=False) == [[4, 4], [2, 2, 2]]


@pytest.mark.parametrize("heads_first", [False, True])
def test_tokens_are_spread_and_joined(padded: None, heads_first: bool) -> None:
    layout = PackedLayout(torch.tensor([0, *LENGTHS]).cumsum(0), max(LENGTHS))
    x = torch.arange(sum(LENGTHS) * 6, dtype=torch.float64).view(-1, 2, 3).requires_grad_()
    parts = list(spread(layout.blocks, x, heads_first=heads_first))
    assert [wide.shape[2] for _, wide in parts] == [6, 9]
    assert torch.equal(torch.cat([block.join(wide, heads_first=heads_first) for block, wide in parts]), x)
    for block, wide in parts:
        (
            wide if block.padding is None else wide.masked_fill(block.padding.is_padding[:, None, :, None], 0)
        ).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones_like(x))


def computed(needs: Needs) -> tuple[EncoderOutput, list[torch.Tensor]]:
    """The output, and the gradients of all that was asked for."""
    built = model(UNIFORM).double()
    out = built(batch(LENGTHS, UNIFORM), needs)
    kept = [x for layer in (*(out.attentions or ()), *(out.attention_scores or ())) for x in layer]
    total = sum(
        ((x * torch.arange(x.numel()).view_as(x).cos()).sum() for x in [*kept, out.last_hidden]), torch.zeros(())
    )
    total.backward()
    return out, [p.grad for p in built.parameters() if p.grad is not None]


def test_maps_of_padded_blocks_are_those_of_the_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Needs(attentions=True, attention_scores=True)
    plain, expected = computed(needs)
    monkeypatch.setattr(PackedLayout, "pads", True)
    out, gradients = computed(needs)
    torch.testing.assert_close(out.last_hidden, plain.last_hidden, rtol=1e-12, atol=1e-12)
    for name in ("attentions", "attention_scores"):
        for ours, theirs in zip(getattr(out, name), getattr(plain, name), strict=True):
            assert isinstance(ours, BlockMaps)
            assert [block.shape[0] for block in ours.blocks] == [5, 2]
            assert not ours.blocks[0][0, :, 3:].any()
            assert not ours.blocks[0][0, :, :, 3:].any()
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_only_layers_that_are_read_have_maps() -> None:
    out = model(UNIFORM)(batch(LENGTHS), Needs(attentions=frozenset({1}), projections=frozenset({2})))
    assert out.attentions is not None
    assert out.queries is not None
    assert [len(maps) for maps in out.attentions] == [0, len(LENGTHS), 0]
    assert [x.numel() > 0 for x in out.queries] == [False, False, True]
    assert out.attentions[1][2].shape == out.attentions[1][1:4][1].shape == (4, 5, 5)

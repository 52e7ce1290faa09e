"""Every way in which attention is computed gives the same context and the same gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from compress.encoder.modules import attention
from compress.encoder.modules.blocks import spread
from compress.encoder.modules.dropout import Dropout, dropout
from compress.encoder.modules.layout import PackedLayout
from compress.encoder.modules.pattern import FULL

LENGTHS = [3, 3, 70, 1, 50, 50, 12]


def projections(dtype: torch.dtype, heads: int = 3, width: int = 8) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(sum(LENGTHS), heads, width, generator=generator, dtype=torch.float64) for _ in range(3)]
    return [t.to(dtype).requires_grad_() for t in made]


def packed() -> PackedLayout:
    return PackedLayout(torch.tensor([0, *LENGTHS]).cumsum(0), max(LENGTHS))


def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sequence by sequence, in the plainest way."""
    contexts = []
    for q_, k_, v_ in zip(*(t.split(LENGTHS) for t in (q, k, v)), strict=True):
        weights = torch.einsum("ihk,jhk->hij", q_, k_).div(math.sqrt(q.shape[-1])).softmax(-1)
        contexts.append(torch.einsum("hij,jhk->ihk", weights, v_))
    return torch.cat(contexts)


def test_runs_of_one_length_are_blocks() -> None:
    assert [block.lengths for block in packed().blocks] == [[3, 3], [70], [1], [50, 50], [12]]


@pytest.mark.parametrize("way", ["attend", "attend_explicitly", "padded"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)]
)
def test_ways_of_attention_agree(
    way: str, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, ours = projections(torch.float64), projections(dtype)
    expected = reference(*exact)
    q, k, v = ours
    if way == "attend":
        got = packed().attend(*ours, dropout=0.0)
    elif way == "attend_explicitly":
        got, _ = packed().attend_explicitly(*ours, dropout=0.0)
    else:  # what a GPU takes where the variable-length kernel does not apply
        monkeypatch.setattr(PackedLayout, "pads", True)
        layout = packed()
        assert any(block.padding for block in layout.blocks)
        got = layout._attend_blocks(q, k, v, 0.0, FULL, None)
    assert got.shape == expected.shape
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
    slope = torch.arange(expected.numel()).view_as(expected).cos().double()
    (expected * slope).sum().backward()
    (got * slope.to(dtype)).sum().backward()
    for a, b in zip(ours, exact, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=10 * tolerance, atol=2 * tolerance)


def test_one_run_needs_no_copy_of_the_parts() -> None:
    q = torch.randn(6, 3 * 2 * 4)
    parts = [part.unflatten(-1, (2, 4)) for part in q.chunk(3, -1)]
    views = next(spread(PackedLayout(torch.tensor([0, 3, 6]), 3).blocks, *parts))[1:]
    assert all(view.untyped_storage().data_ptr() == q.untyped_storage().data_ptr() for view in views)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_dropout_keeps_the_mean(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (t.detach() for t in projections(dtype))
    runs = torch.stack([packed().attend(q, k, v, dropout=0.2).float() for _ in range(100)])
    expected = packed().attend(q, k, v, dropout=0.0).float()
    assert not torch.equal(runs[0], runs[1])
    error = (runs.mean(0) - expected) / (runs.std(0) / math.sqrt(100) + 1e-3)
    assert error.abs().mean() < 1.2  # |z| of a standard normal: 0.8


def test_dropout_is_bernoulli() -> None:
    torch.manual_seed(0)
    x = torch.full((1000, 1001), 2.0, requires_grad=True)
    y = dropout(x, 0.1)
    kept = y != 0
    assert abs(kept.float().mean() - 0.9) < 0.001
    assert abs(y.mean() - 2.0) < 0.005
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 2 / 0.9), rtol=1e-4, atol=0)
    per_column, per_row = kept.float().mean(0), kept.float().mean(1)
    assert per_column.std() < 1.2 * math.sqrt(0.09 / 1000)
    assert per_row.std() < 1.2 * math.sqrt(0.09 / 1001)
    neighbours = (kept[:, 1:] & kept[:, :-1]).float().mean()
    assert abs(neighbours - 0.81) < 0.002
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, kept)
    torch.testing.assert_close(x.grad[kept], torch.full_like(y[kept], 1 / 0.9), rtol=1e-4, atol=0)


def test_dropout_repeats_with_the_seed_on_any_number_of_threads() -> None:
    masks = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            torch.manual_seed(5)
            masks.append(dropout(torch.ones(333, 77), 0.5))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*masks)
    assert not torch.equal(masks[0], dropout(torch.ones(333, 77), 0.5))


def test_dropout_does_nothing_when_off() -> None:
    x = torch.ones(3)
    assert dropout(x, 0.0) is x
    assert Dropout(0.5).eval()(x) is x
    assert str(Dropout(0.5)) == "Dropout(p=0.5)"


def test_short_threshold_is_covered() -> None:
    assert min(LENGTHS) < attention.SHORT < max(LENGTHS)

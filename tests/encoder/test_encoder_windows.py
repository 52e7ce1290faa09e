"""Windowed attention: by blocks, by mask and step by step it is the dense product under the pattern's mask."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from encoder_helpers import EVERYTHING, UNIFORM, batch, heads, model, padded
from example_counts import scaled
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules import windows
from compress.encoder.modules.blocks import build_blocks
from compress.encoder.modules.layout import PackedLayout, PaddedLayout
from compress.encoder.modules.pattern import AttentionPattern
from compress.encoder.reshape.students import take_layers
from compress.errors import UserError

LOCAL = dataclasses.replace(UNIFORM, max_positions=256, windows=(3, None, 20), global_tokens=1)


def projections(lengths: list[int], dtype: torch.dtype, heads: int = 2, width: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    made = [torch.randn(sum(lengths), heads, width, generator=generator, dtype=torch.float64) for _ in range(3)]
    return [t.to(dtype).requires_grad_() for t in made]


def reference(parts: list[Tensor], lengths: list[int], window: int, first: int) -> Tensor:
    """Sequence by sequence and pair by pair, straight from the definition."""
    contexts = []
    for q, k, v in zip(*(t.split(lengths) for t in parts), strict=True):
        n = len(q)
        sees = torch.tensor([[abs(i - j) <= window or i < first or j < first for j in range(n)] for i in range(n)])
        scores = torch.einsum("ihk,jhk->hij", q, k).div(math.sqrt(q.shape[-1])).masked_fill(~sees, float("-inf"))
        contexts.append(torch.einsum("hij,jhk->ihk", scores.softmax(-1), v))
    return torch.cat(contexts)


def ways(parts: list[Tensor], lengths: list[int], pattern: AttentionPattern) -> dict[str, Tensor]:
    q, k, v = parts
    layout = PackedLayout(torch.tensor([0, *lengths]).cumsum(0), max(lengths))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    wide = [t.new_zeros(*mask.shape, *t.shape[1:]).masked_scatter(mask[..., None, None], t) for t in parts]
    padding = PackedLayout(layout.cu_seqlens, max(lengths))
    padding._blocks = build_blocks(lengths, layout.grid)
    return {
        "packed": layout.attend(*parts, dropout=0.0, pattern=pattern),
        "packed, with maps": layout.attend_explicitly(*parts, dropout=0.0, pattern=pattern)[0],
        "as on GPU": padding._attend_blocks(q, k, v, 0.0, pattern, None),
        "as on GPU, with maps": padding.attend_explicitly(*parts, dropout=0.0, pattern=pattern)[0],
        "padded": PaddedLayout(mask).attend(*wide, dropout=0.0, pattern=pattern)[mask],
        "padded, with maps": PaddedLayout(mask).attend_explicitly(*wide, dropout=0.0, pattern=pattern)[0][mask],
    }


@settings(max_examples=scaled(60), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    window=st.integers(1, 210),
    first=st.integers(0, 70),
)
@example(lengths=[64, 64, 65, 1], window=64, first=0)
@example(lengths=[129, 129], window=1, first=1)
@example(lengths=[199], window=31, first=66)
def test_every_way_is_the_dense_masked_product(lengths: list[int], window: int, first: int) -> None:
    exact = projections(lengths, torch.float64)
    expected = reference(exact, lengths, window, first)
    slope = torch.arange(expected.numel()).view_as(expected).cos().double()
    wanted = torch.autograd.grad((expected * slope).sum(), exact)
    for name, got in ways(exact, lengths, AttentionPattern(window, first)).items():
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
        for ours, theirs in zip(
            torch.autograd.grad((got * slope).sum(), exact, retain_graph=True), wanted, strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("grad", [True, False])
def test_in_lower_precision(dtype: torch.dtype, tolerance: float, grad: bool) -> None:
    lengths = [150, 150, 30, 7]
    exact, ours = projections(lengths, torch.float64), projections(lengths, dtype)
    expected = reference(exact, lengths, 20, 2)
    with torch.set_grad_enabled(grad):
        for got in ways(ours, lengths, AttentionPattern(20, 2)).values():
            assert got.dtype == dtype
            torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_backward_pass_draws_the_same_dropout_again(dtype: torch.dtype) -> None:
    """Against the same blocks differentiated in the ordinary way, from the same seed."""
    q, k, v = (t.detach().unsqueeze(0).transpose(1, 2).requires_grad_() for t in projections([150], dtype))
    pattern = AttentionPattern(20, 1)
    torch.manual_seed(3)
    got = windows.attend_in_windows(q, k, v, pattern, 0.3)
    after = torch.get_rng_state()
    slope = torch.arange(got.numel()).view_as(got).cos().to(dtype)
    ours = torch.autograd.grad((got * slope).sum(), (q, k, v))
    assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(3)
    plain = windows._forward(q, k, v, pattern, 0.3, None)
    assert torch.equal(got, plain)
    tolerance = 1e-12 if dtype == torch.float64 else 5e-2
    for a, b in zip(ours, torch.autograd.grad((plain * slope).sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert not torch.equal(got, windows.attend_in_windows(q, k, v, pattern, 0.3))


def test_nothing_of_quadratic_size_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest product of one head has a block's rows and its columns, whatever the length."""
    sizes: list[int] = []
    plain = windows.attention

    def watched(q: Tensor, k: Tensor, v: Tensor, dropout: float, bias: Tensor | None) -> Tensor:
        sizes.append(q.shape[2] * k.shape[2])
        return plain(q, k, v, dropout, bias)

    monkeypatch.setattr(windows, "attention", watched)
    for length in (1000, 2000):
        sizes.clear()
        q = torch.randn(1, 2, length, 4, requires_grad=True)
        windows.attend_in_windows(q, q, q, AttentionPattern(50, 1), 0.0).sum().backward()
        assert max(sizes) <= max(length, 64 * (64 + 2 * 50 + 1))
        assert sum(sizes) <= 2 * (length + length * (64 + 2 * 50 + 1))


def test_maps_have_nothing_outside_the_window() -> None:
    lengths = [9, 5]
    parts = projections(lengths, torch.float64)
    layout = PackedLayout(torch.tensor([0, 9, 14]), 9)
    _, maps = layout.attend_explicitly(*parts, dropout=0.0, pattern=AttentionPattern(2, 1))
    first = maps.probabilities[0][0]
    assert first[0].count_nonzero() == 9
    assert first[:, 0].count_nonzero() == 9
    assert first[5].nonzero().flatten().tolist() == [0, 3, 4, 5, 6, 7]
    torch.testing.assert_close(first.sum(-1), torch.ones(9, dtype=torch.float64))
    assert all(scores.isfinite().all() for scores in maps.scores)


def test_packed_and_padded_models_agree() -> None:
    built, b = model(LOCAL).double(), batch([100, 7, 150, 1], LOCAL)
    ids, mask, segments = padded(b, 3)
    real = mask.bool()
    for needs in (EVERYTHING, Needs(logits=True)):
        ours, theirs = built(b, needs), built.forward_padded(ids, mask, segments, needs)
        torch.testing.assert_close(ours.last_hidden, theirs.last_hidden[real], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-11, atol=1e-11)
        assert theirs.last_hidden.isfinite().all()
    assert not torch.allclose(
        ours.last_hidden, full(built, LOCAL)(b, Needs(logits=True)).last_hidden
    )  # the windows do matter


def full(built: torch.nn.Module, config: EncoderConfig) -> torch.nn.Module:
    """The same weights with full attention."""
    plain = model(dataclasses.replace(config, windows=None, global_tokens=0)).double()
    plain.load_state_dict(built.state_dict())
    return plain


def test_a_wide_window_is_full_attention() -> None:
    wide = dataclasses.replace(UNIFORM, windows=(63,) * 3)
    built, b = model(wide).double(), batch([64, 20], wide)
    torch.testing.assert_close(built(b).last_hidden, full(built, wide)(b).last_hidden, rtol=1e-12, atol=1e-12)


def test_layers_that_share_parameters_may_differ_in_their_window() -> None:
    shared = dataclasses.replace(LOCAL, layer_groups=(0, 0, 0))
    one = dataclasses.replace(shared, windows=(20, None, 3))
    built, b = model(shared).double(), batch([100], shared)
    other = model(one).double()
    other.load_state_dict(built.state_dict())
    assert not torch.allclose(built(b).last_hidden, other(b).last_hidden)


def test_exports_with_free_sizes() -> None:
    built = model(LOCAL)

    class Exported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = built

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            logits = self.model.forward_padded(ids, mask, None, Needs(logits=True)).logits
            assert logits is not None
            return logits

    ids, mask, _ = padded(batch([60, 40], LOCAL))
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=256)}
    program = torch.export.export(Exported().eval(), (ids, mask), dynamic_shapes=(sizes, sizes))
    ids, mask, _ = padded(batch([90, 2, 50], LOCAL, seed=4))
    torch.testing.assert_close(program.module()(ids, mask), Exported()(ids, mask), rtol=1e-5, atol=1e-5)


def test_the_config_keeps_its_windows() -> None:
    assert EncoderConfig.from_dict(LOCAL.to_dict()) == LOCAL
    assert LOCAL.patterns == (AttentionPattern(3, 1), AttentionPattern(), AttentionPattern(20, 1))
    assert dataclasses.replace(UNIFORM, windows=(None, None, None)) == UNIFORM
    assert UNIFORM.patterns == (AttentionPattern(),) * 3


def test_a_config_written_before_there_were_windows_is_read() -> None:
    old = {key: value for key, value in UNIFORM.to_dict().items() if key not in ("windows", "global_tokens")}
    assert EncoderConfig.from_dict(old) == UNIFORM


def test_a_student_has_the_windows_of_its_layers() -> None:
    built = model(LOCAL)
    assert take_layers(built, [0, 2]).config.windows == (3, 20)
    plain = take_layers(built, [1]).config
    assert (plain.windows, plain.global_tokens) == (None, 0)
    assert set(heads(plain)) == set(built.head_configs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"windows": (3,)}, "1 entries for 3 layers"),
        ({"windows": (3, 0, 3)}, "entry 1 is 0"),
        ({"windows": (3, 2.5, 3)}, "entry 1 must be an integer, not 2.5"),
        ({"windows": (3, None, 3), "global_tokens": -1}, "global_tokens is -1"),
        ({"windows": (3, None, 3), "global_tokens": 65}, "global_tokens is 65"),
        ({"global_tokens": 1}, "global_tokens is 1, but no layer has a window"),
    ],
)
def test_bad_windows_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(UNIFORM, **change)  # pyright: ignore[reportArgumentType]


def test_windows_must_be_a_list() -> None:
    with pytest.raises(UserError, match="windows must be a list"):
        EncoderConfig.from_dict({**UNIFORM.to_dict(), "windows": 3})

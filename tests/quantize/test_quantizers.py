"""What every quantizer promises, on all that the registry finds; and the formulas of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from compress import registry
from compress.encoder.config.quantization import PACKAGE
from compress.errors import UserError
from compress.quantizers._rounding import dequantize

KINDS = sorted(registry.parts(PACKAGE))
PLACES = [(kind, on) for kind in KINDS for on in sorted(registry.load(PACKAGE, kind).fits)]


def drawn(seed: int = 0, rows: int = 12, width: int = 40) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def built(kind: str, on: str, x: Tensor, **options: Any) -> Any:
    """A quantizer ready to use: it saw x where it must see something."""
    row = registry.schema(PACKAGE, kind).model_validate({"kind": kind, **options})
    quantizer = registry.build(PACKAGE, row, None if on == "input" else tuple(x.shape))
    if quantizer.calibrated:
        quantizer.observe(x)
        quantizer.freeze()
    return quantizer.eval()


@pytest.mark.parametrize(("kind", "on"), PLACES)
def test_a_call_gives_what_the_exported_integers_stand_for(kind: str, on: str) -> None:
    x = drawn()
    quantizer = built(kind, on, x)
    out, found = quantizer(x), quantizer.export(x)
    assert torch.equal(dequantize(found), out.detach())
    assert found.codes.dtype == (torch.int8 if quantizer.scheme.signed else torch.uint8)
    assert found.codes.shape == x.shape
    assert found.scale.shape == found.zero_point.shape
    assert found.zero_point.dtype == torch.int32
    assert bool((found.scale > 0).all())
    low, high = quantizer.scheme.lowest, quantizer.scheme.highest
    assert low <= int(found.codes.min()) <= int(found.codes.max()) <= high
    assert high - low < 2**quantizer.scheme.bits


@pytest.mark.parametrize(("kind", "on"), PLACES)
def test_rounding_twice_gives_the_same_codes(kind: str, on: str) -> None:
    x = drawn(1)
    quantizer = built(kind, on, x)
    once = quantizer(x).detach()
    assert torch.allclose(quantizer(once), once, rtol=1e-6, atol=1e-7)
    assert torch.equal(quantizer.export(once).codes, quantizer.export(x).codes)


@pytest.mark.parametrize(("kind", "on"), PLACES)
def test_all_that_a_quantizer_knows_is_in_its_state(kind: str, on: str) -> None:
    x = drawn(2)
    first = built(kind, on, x)
    second = built(kind, on, drawn(3))
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(x), first(x))


@pytest.mark.parametrize("bits", [9, 16])
def test_wide_codes_take_two_bytes_and_are_nearly_exact(bits: int) -> None:
    x = drawn(4)
    found = built("per_channel", "weight", x, bits=bits).export(x)
    assert found.codes.dtype == torch.int16
    assert float((dequantize(found) - x).abs().max()) <= float(x.abs().max()) / (2**bits - 2) * 1.001


@pytest.mark.parametrize(("kind", "bits"), [("per_channel", 17), ("per_channel", 1), ("per_token", 9), ("lsq", 0)])
def test_bits_out_of_range_are_refused(kind: str, bits: int) -> None:
    with pytest.raises(ValidationError, match="bits"):
        registry.schema(PACKAGE, kind).model_validate({"kind": kind, "bits": bits})


def test_a_moving_range_stands_still_when_it_is_told_to_and_in_evaluation() -> None:
    quantizer = built("ema", "input", drawn())
    for still, training in ((True, True), (False, False)):
        before = quantizer.scale.clone()
        quantizer.still = still
        quantizer.train(training)(9 * drawn())
        assert torch.equal(quantizer.scale, before)
    quantizer.train()(9 * drawn())
    assert quantizer.scale > before


def test_scales_by_their_formula() -> None:
    x = torch.tensor([[0.5, -2.54, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert built("per_channel", "weight", x).scale_and_zero_point(x)[0][0] == torch.tensor(2.54) / 127
    assert torch.equal(
        built("per_channel", "weight", x).export(x).codes[0], torch.tensor([25, -127, 50, 0]).to(torch.int8)
    )
    assert built("per_tensor", "weight", x, bits=4).scale_and_zero_point(x)[0] == torch.tensor(2.54) / 7
    grouped = built("per_group", "weight", x, bits=4, group=3)
    assert grouped.scale_and_zero_point(x)[0].shape == (2, 2)
    assert built("per_token", "input", x).export(x).zero_point.sum() == 0
    assert built("per_token", "input", x)(x)[1].abs().sum() == 0


def test_learned_steps_have_the_papers_gradients() -> None:
    """L = sum of y, bits 4, step 0.1 (1902.08153, equation 3)."""
    x = torch.tensor([-1.3, -0.26, 0.04, 0.49, 0.51, 2.2], requires_grad=True)
    quantizer = built("lsq", "input", drawn(), bits=4).train()
    quantizer.scale.data.fill_(0.1)
    y = quantizer(x)
    y.sum().backward()
    assert torch.allclose(y.detach(), torch.tensor([-0.8, -0.3, 0.0, 0.5, 0.5, 0.7]))
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 0]
    assert quantizer.scale.grad.item() == pytest.approx(-0.27774603, abs=1e-6)


@pytest.mark.parametrize(("kind", "clamp", "step", "through"), [
    ("lsq", {}, 7.0, 0.0), ("lsq", {"clamp": "last"}, -0.24, 1.0),
    ("lsq_plus", {}, 7.0, 0.0), ("lsq_plus", {"clamp": "last"}, -0.24, 1.0),
])  # fmt: skip
def test_half_a_step_beyond_the_last_code(kind: str, clamp: dict[str, str], step: float, through: float) -> None:
    """x = .724 with step .1: v = 7.24 lies beyond code 7 and is rounded to it. The papers clamp first."""
    x = torch.tensor([0.724], requires_grad=True)
    quantizer = built(kind, "input", drawn(), bits=4, **clamp).train()
    quantizer.scale.data.fill_(0.1)
    if kind == "lsq_plus":  # its codes start from 0
        quantizer.offset.data.fill_(-0.8)
    quantizer(x).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == through
    highest = quantizer.scheme.highest
    if kind == "lsq":
        assert quantizer.scale.grad.item() * highest**0.5 == pytest.approx(step, abs=1e-4)
    else:
        assert quantizer.offset.grad.item() * highest**0.5 == pytest.approx(1 - through, abs=1e-4)


@pytest.mark.parametrize("clamp", ["first", "last"])
@pytest.mark.parametrize("options", [{}, {"per": "group", "group": 7, "scale_dtype": "fp16"}, {"balanced": True}])
def test_the_order_of_rounding_and_clamping_changes_no_number(options: dict[str, Any], clamp: str) -> None:
    x = drawn(5)
    plain = built("lsq", "weight", x, bits=3, **options)
    other = built("lsq", "weight", x, bits=3, clamp=clamp, **options)
    assert torch.equal(plain(2 * x), other(2 * x))


@pytest.mark.parametrize("kind", ["lsq", "per_group"])
def test_scales_in_fp16(kind: str) -> None:
    """They are numbers of fp16, large and small ones, and a group of zeros has one."""
    x = drawn(6) * torch.logspace(-9, 6, 12)[:, None]
    x[3] = 0
    options = {"per": "group"} if kind == "lsq" else {}
    quantizer = built(kind, "weight", x, bits=4, group=8, scale_dtype="fp16", **options)
    found = quantizer.export(x)
    assert torch.equal(found.scale.half().float(), found.scale)
    assert float(found.scale.min()) >= 2**-14  # normal: smaller ones are 0 to some runtimes
    assert torch.equal(dequantize(found), quantizer(x).detach())
    wide = built(kind, "weight", x[6:], bits=4, group=8, **options).export(x[6:])
    assert torch.allclose(found.scale[6:], wide.scale.clamp_max(65504), rtol=2**-11)


def test_old_rows_of_a_config_keep_fp32_scales() -> None:
    x = drawn(7)
    found = built("per_group", "weight", x, bits=4, group=32).export(x)
    groups = torch.nn.functional.pad(x, (0, 24)).unflatten(-1, (-1, 32)).abs().amax(-1)
    assert torch.equal(found.scale, groups / 7)


@pytest.mark.parametrize(("kind", "options"), [
    ("per_channel", {"range": "mse"}), ("per_group", {"range": "mse", "group": 16}), ("lsq", {}),
])  # fmt: skip
def test_balanced_codes(kind: str, options: dict[str, Any]) -> None:
    """All four codes of 2 bits, none of them zero, and a smaller error than with three or uneven ones."""
    x = drawn(8, 20, 64)

    def error(balanced: bool) -> float:
        return float((built(kind, "weight", x, bits=2, balanced=balanced, **options)(x) - x).detach().square().mean())

    quantizer = built(kind, "weight", x, bits=2, balanced=True, **options)
    assert set(quantizer.export(x).codes.unique().tolist()) == {-3, -1, 1, 3}
    assert torch.equal(dequantize(quantizer.export(x)), quantizer(x).detach())
    assert torch.allclose(quantizer(quantizer(x)).detach(), quantizer(x).detach(), rtol=1e-5)
    assert error(True) < 0.85 * error(False)
    with pytest.raises(UserError, match="at most 7 bits"):
        built(kind, "weight", x, bits=8, balanced=True, **options)


def test_least_squared_error_beats_the_largest_number() -> None:
    x = drawn(9, 30, 64)
    for kind in ("per_channel", "per_group"):
        for bits in (2, 3, 4):
            of = [built(kind, "weight", x, bits=bits, range=r)(x) - x for r in ("max", "mse")]
            assert of[1].square().mean() < of[0].square().mean(), (kind, bits)

"""The prepared copy computes what the model computes, and leaves the model alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from encoder_helpers import UNIFORM, VARIATIONS, batch, heads, model, needs

from compress.contracts import EncoderOutput, Needs
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.infer import prepare as inference
from compress.encoder.infer.prepare import PackedLinear, can_pack, prepare
from compress.encoder.modules.model import Model


def tensors(value: object) -> list[torch.Tensor]:
    """Every tensor in an output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Sequence):  # of maps, too
        return [t for item in value for t in tensors(item)]
    if isinstance(value, EncoderOutput):
        found = [
            t for f in dataclasses.fields(value) if f.name != "vocabulary" for t in tensors(getattr(value, f.name))
        ]
        return found + ([value.vocabulary.logits()] if value.vocabulary else [])
    return []


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("name", VARIATIONS)
def test_equals_the_plain_model(name: str, packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packs:
        monkeypatch.setattr(inference, "can_pack", lambda precision: False)
    config = VARIATIONS[name]
    plain, b = model(config).train(), batch([5, 5, 60, 2], config)
    before = {key: tensor.clone() for key, tensor in plain.state_dict().items()}
    prepared = prepare(plain)
    got = tensors(prepared(b, needs(config)))
    assert plain.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in plain.state_dict().items())
    plain.eval()
    expected = tensors(plain(b, needs(config)))
    assert len(got) == len(expected) >= 40
    for ours, theirs in zip(got, expected, strict=True):
        assert not ours.requires_grad
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def published(layers: int = 3) -> EncoderConfig:
    """Widths as in real use, weights as initialised: where 1e-5 is asked for."""
    return EncoderConfig.uniform(vocabulary=500, hidden=96, layers=layers, heads=4, feed_forward=384, max_positions=128)


def test_fp32_to_1e5_and_bf16_near() -> None:
    config = published()
    plain, b = Model(config, heads(config)).eval(), batch([128, 40, 40, 9], config)
    exact = plain(b, Needs(logits=True, mlm="all"))
    ours = prepare(plain)(b, Needs(logits=True, mlm="all"))
    for a, e in zip(tensors(ours), tensors(exact), strict=True):
        assert (a - e).abs().max() < 1e-5
    near = prepare(plain, "bf16")(b, Needs(mlm="all"))
    assert near.last_hidden.dtype == torch.bfloat16
    assert (near.last_hidden.float() - exact.last_hidden).norm() < 0.02 * exact.last_hidden.norm()
    assert near.vocabulary is not None
    assert near.vocabulary.logits().dtype == torch.bfloat16


def test_shares_nothing_with_the_original() -> None:
    plain, b = model(UNIFORM), batch([4, 9])
    prepared = prepare(plain)
    before = prepared(b).last_hidden
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.zero_()
    assert torch.equal(prepared(b).last_hidden, before)


def test_its_precision_holds_under_autocast() -> None:
    prepared, b = prepare(model(UNIFORM)), batch([50, 9])
    expected = prepared(b, Needs(logits=True))
    with torch.autocast("cpu", torch.bfloat16):
        got = prepared(b, Needs(logits=True))
    assert got.last_hidden.dtype == torch.float32
    assert torch.equal(got.logits, expected.logits)  # pyright: ignore


def test_shared_layers_stay_shared() -> None:
    prepared = prepare(model(VARIATIONS["shared"]))
    assert len(prepared.model.encoder.layers) == 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("activation", inference.FUSED)
def test_fused_activations_are_exact(activation: str, precision: inference.Precision) -> None:
    if not can_pack(precision):
        pytest.skip("no packed products here")
    dtype = inference.DTYPES[precision]
    torch.manual_seed(0)
    weight, bias, x = (torch.randn(*shape).to(dtype) for shape in ((24, 16), (24,), (300, 16)))
    got = PackedLinear(weight, bias, inference.FUSED[activation])(x)
    from compress.encoder.modules.layers import activation as named

    expected = named(activation)(torch.nn.functional.linear(x.double(), weight.double(), bias.double()))  # pyright: ignore
    tolerance = 1e-5 if precision == "fp32" else 1e-2
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


def test_packs_on_this_machine() -> None:
    """Where torch has oneDNN and the operators, the fast path is the one in use: a silent fallback would be slow."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("torch without oneDNN")
    assert can_pack("fp32")
    kinds = {type(module).__name__ for module in prepare(model(UNIFORM)).model.modules()}
    assert "JoinedAttention" in kinds
    assert "Linear" not in kinds

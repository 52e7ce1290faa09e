"""A quantized model with torch's integer products computes what the fake-quantized model computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import test_onnx_encoder as floats
import test_onnx_integers as onnx
import torch
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.contracts import Batch, Needs
from compress.encoder.integers import products as integers
from compress.encoder.integers.fake_quantized import (
    QuantizedLinear,
    QuantizedSharedLinear,
    compute_weight,
    list_quantized_modules,
    set_mode,
    use,
)
from compress.encoder.integers.products import IntegerEmbedding, IntegerLinear, prepare_integers, products
from compress.encoder.modules.answers import needs_of
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.measure.cost import replace_rows
from compress.onnx.check import ERROR_SHARE
from compress.quantizers import per_channel, per_token

FLOATS = (
    "weights alone",
    "int4",
    "16 bits",
    "16 bits, rounded inputs",
    "2 bits",
    "3 bits",
)  # no product of theirs is of bytes
SCHEMES = {name: scheme for name, scheme in onnx.SCHEMES.items() if name not in FLOATS}
TOKEN = {"kind": "per_token"}
NAMED = [name for name in onnx.NAMED if name not in ("int4", "int3", "int2")]


def answer(run: Any, batch: Batch, needs: Needs) -> np.ndarray:
    """Of the head that is asked, else the last hidden states."""
    with torch.inference_mode():
        found = run(batch, needs)
        vocabulary = None if found.vocabulary is None else found.vocabulary.logits()
    first = [
        x for x in (found.logits, found.pair_logits, found.replaced, vocabulary, found.last_hidden) if x is not None
    ]
    return first[0].numpy()


def close(model: Model) -> bool:
    """Whether integers are far nearer to the simulation than that is to the float model: an ulp moves a number over
    the middle between two codes now and then, and layers carry it on."""
    batch, needs = onnx.packed(), needs_of(model.heads)
    wanted, found = answer(model, batch, needs), answer(prepare_integers(model), batch, needs)
    set_mode(model, "float")
    unrounded = answer(model, batch, needs)
    set_mode(model, "quantized")
    return bool(np.abs(found - wanted).mean() < ERROR_SHARE * np.abs(wanted - unrounded).mean())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme(scheme: str) -> None:
    assert close(onnx.quantized(scheme=SCHEMES[scheme]))


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", NAMED)
def test_every_named_scheme(scheme: str) -> None:
    assert close(onnx.quantized("bert", "classification", scheme))


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["per-token", "static"])
@pytest.mark.parametrize("wiring", floats.WIRINGS)
def test_every_wiring(wiring: str, scheme: str) -> None:
    assert close(onnx.quantized(wiring, "none", scheme))


@pytest.mark.parametrize("heads", floats.HEADS)
def test_every_head(heads: str) -> None:
    assert close(onnx.quantized("bert", heads))


@pytest.mark.parametrize("scheme", ["per-token", "static", "lsq", "q8bert"])
def test_a_layer_given_the_models_own_input_is_the_same_to_rounding(scheme: str) -> None:
    """Every matrix of every layer by itself, so that nothing that rounding moved elsewhere is carried into it."""
    model = onnx.quantized("bert", "classification", scheme)
    matrices = {name: m for name, m in list_quantized_modules(model).items() if use(m) == "weight"}
    assert products(model) == (len(matrices), len(matrices))
    seen: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
    for module in matrices.values():
        module.register_forward_hook(lambda m, x, y: seen.append((m, x[0].detach(), y.detach())))
    answer(model, onnx.packed(), needs_of(model.heads))
    assert len(seen) == len(matrices)
    for module, x, y in seen:
        torch.testing.assert_close(IntegerLinear([module], {})(x), y, atol=1e-5, rtol=1e-5)


@settings(max_examples=scaled(30), deadline=None)
@given(st.integers(1, 9), st.integers(1, 70), st.integers(1, 40), st.integers(2, 8), st.booleans(), st.integers(0, 99))
def test_products_of_any_shape(rows: int, width: int, outputs: int, bits: int, bias: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer = torch.nn.Linear(width, outputs, bias=bias)
    for parameter in layer.parameters():
        parameter.data.normal_(generator=generator)
    layer.__class__ = QuantizedLinear
    layer.weight_quantizer = per_channel.Quantizer((outputs, width), bits=bits)
    layer.input_quantizer, layer.mode = per_token.Quantizer(bits=bits), "quantized"
    x = torch.randn(2, rows, width, generator=generator) * torch.logspace(-3, 3, rows)[:, None]
    x[0, 0] = 0
    with torch.inference_mode():
        found, wanted = IntegerLinear([layer], {})(x), layer(x)
    torch.testing.assert_close(found, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=1e-5)


@pytest.mark.parametrize("scheme", ["per-token", "static"])
def test_a_row_answers_alike_alone_and_in_a_batch_and_padded(scheme: str) -> None:
    model = onnx.quantized("bert", "classification", scheme)
    run, batch, needs = prepare_integers(model), onnx.packed(), needs_of(model.heads)
    together = answer(run, batch, needs)
    ids, mask = torch.zeros(2, 24, dtype=torch.int64), torch.zeros(2, 24, dtype=torch.int64)
    ids[0], mask[0] = batch.input_ids[:24], 1
    ids[1, :16], mask[1, :16] = batch.input_ids[24:], 1
    with torch.inference_mode():
        padded = run.model.forward_padded(ids, mask, torch.zeros_like(ids), needs).logits
    assert padded is not None
    np.testing.assert_allclose(padded.numpy(), together, atol=1e-4)
    alone = answer(run, replace_rows(batch, 1), needs)
    np.testing.assert_allclose(alone, together[:1], atol=1e-4)


def test_tables_stay_codes_and_layers_that_share_share_their_codes() -> None:
    model = onnx.quantized("bert", "none", {"weight": {"kind": "per_group", "bits": 4, "group": 6}, "input": TOKEN})
    with pytest.raises(
        UserError,
        match="torch does not support integer products for any matrix of this model: the matrices have one scale",
    ):
        prepare_integers(model)
    model = onnx.quantized("residuals", "masked_lm" if "masked_lm" in floats.HEADS else "none", "int4-tables")
    twin = prepare_integers(model).model
    tables = [m for m in twin.modules() if isinstance(m, IntegerEmbedding)]
    assert tables
    assert all(table.table.codes.dtype == torch.int8 for table in tables)
    for name, table in twin.named_modules():
        if isinstance(table, IntegerEmbedding):
            torch.testing.assert_close(table.weight, compute_weight(model.get_submodule(name)))
    packed = [id(m.codes) for m in twin.modules() if isinstance(m, IntegerLinear)]
    assert len(set(packed)) < len(packed)
    assert not [m for m in twin.modules() if isinstance(m, QuantizedLinear | QuantizedSharedLinear)]


def test_what_cannot_be_computed_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError) as caught:
        prepare_integers(floats.model_of("bert", "none"))
    assert str(caught.value) == (
        "--runtime torch-int8: the model is not quantized; quantize it first: compress quantize"
    )
    model = onnx.quantized()
    multiply = integers._multiply
    monkeypatch.setattr(integers, "_multiply", lambda *given: multiply(*given).clamp(-32768, 32767))
    with pytest.raises(UserError, match="torch's integer products are not exact on this processor") as caught:
        prepare_integers(model)
    assert "--runtime torch" in str(caught.value)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(UserError, match="this torch does not support integer products on this processor"):
        prepare_integers(model)

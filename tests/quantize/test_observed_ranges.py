"""A float model becomes a quantized one: rules, ranges observed on real input, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.integers.convert import calibrate, plan_quantization, quantize_model
from compress.encoder.integers.fake_quantized import integer_megabytes, list_quantized_modules
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.folder import load_model, save_model
from compress.predict.predictor import build_fixed_batch
from compress.stages.quantize.stage import apply_fallback

CONFIG = EncoderConfig.uniform(vocabulary=50, hidden=32, layers=2, heads=4, feed_forward=64)
SCHEMES = ("per-token", "static", "static-ema", "static-percentile", "static-mse", "static-kl", "lsq", "lsq-plus")
SCHEMES += ("q8bert", "int4", "int4-tables")


def small() -> Model:
    return Model(CONFIG, {"task": HeadConfig("classification", labels=3)}).eval()


def made(**spec: Any) -> Model:
    model = small()
    whole = quantize_model(model, plan_quantization(QuantizationSpec(**spec), model)).eval()
    calibrate(whole, [build_fixed_batch(CONFIG, 4, 9)])
    return whole


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_answers_nearly_alike_and_reloads_to_the_same_bits(scheme: str, tmp_path: Path) -> None:
    model, batch = made(scheme=scheme), build_fixed_batch(CONFIG, 3, 7)
    with torch.no_grad():
        ours, plain = (m(batch, Needs(logits=True)).logits for m in (model, small()))
        assert ours is not None
        assert plain is not None
        assert 0 < float((ours - plain).abs().max()) < 0.05
        save_model(tmp_path / "m", model, tokenizer_files={})
        again = load_model(tmp_path / "m")
        assert again.family == "bert"
        theirs = again.model(batch, Needs(logits=True)).logits
        assert theirs is not None
        assert torch.equal(theirs, ours)
    assert integer_megabytes(model) < 0.6 * sum(p.numel() for p in small().parameters()) * 4 / 1e6


def test_the_last_rule_counts_and_nothing_is_matched_in_silence() -> None:
    rules = [{"pattern": "encoder.layers.0.*"}]
    assert all(not name.startswith("encoder.layers.0.") for name in list_quantized_modules(made(rules=rules)))
    with pytest.raises(UserError, match=r"'encoder.layer.0.\*' matches no matrix or table of the model"):
        made(rules=[{"pattern": "encoder.layer.0.*"}])


def test_what_cannot_be_calibrated_names_the_module() -> None:
    model = small()
    whole = quantize_model(model, plan_quantization(QuantizationSpec(scheme="static"), model)).eval()
    with pytest.raises(UserError, match=r"encoder\.layers\.0\.attention\.query: no activations were observed"):
        calibrate(whole, [])
    with pytest.raises(UserError, match="the model is quantized already, and quantizing it again needs float weights"):
        quantize_model(made(), plan_quantization(QuantizationSpec(), model))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": 0.0, "bias": 0.0}, "its input is always 0 on the calibration rows; calibrate on real text"),
        (
            {"bias": float("inf")},
            "its input contains NaN or infinity on the calibration rows; check the model's weights",
        ),
    ],
)
@pytest.mark.parametrize("scheme", ["static", "static-ema", "lsq-plus"])
def test_inputs_without_a_range_are_refused(scheme: str, change: dict[str, float], message: str) -> None:
    model = small()
    for name, value in change.items():
        torch.nn.init.constant_(getattr(model.encoder.embeddings.norm, name), value)
    whole = quantize_model(model, plan_quantization(QuantizationSpec(scheme=scheme), model)).eval()
    with pytest.raises(UserError) as error:
        calibrate(whole, [build_fixed_batch(CONFIG, 4, 9)])
    assert error.value.line() == f"encoder.layers.0.attention.query: {message}"


def test_the_worst_modules_fall_back_to_16_bits_or_to_float() -> None:
    model, batch = small(), build_fixed_batch(CONFIG, 3, 7)
    plan = plan_quantization(QuantizationSpec(scheme="static"), model)
    whole = quantize_model(model, plan).eval()
    calibrate(whole, [build_fixed_batch(CONFIG, 4, 9)])
    back = frozenset(list_quantized_modules(whole)) - {"encoder.layers.1.feed_forward.down"}
    wide, plain = (apply_fallback(model, whole, plan, back, to) for to in ("16-bit", "float"))
    assert set(list_quantized_modules(plain)) == {"encoder.layers.1.feed_forward.down"}
    with torch.no_grad():
        ours, theirs = (m(batch, Needs(logits=True)).logits for m in (wide, plain))
    assert ours is not None
    assert theirs is not None
    assert 0 < float((ours - theirs).abs().max()) < 1e-4
    assert integer_megabytes(whole) < integer_megabytes(wide) < 0.6 * integer_megabytes(plain)

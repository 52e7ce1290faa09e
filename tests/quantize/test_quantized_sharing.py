"""Quantized layers that share matrices: made ready for inference they answer as they do while they are trained."""

from __future__ import annotations

import pytest
import torch

from compress.contracts import LayerGroups, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.infer.prepare import prepare
from compress.encoder.integers.convert import calibrate, plan_quantization, quantize_model
from compress.encoder.modules.model import Model
from compress.predict.predictor import build_fixed_batch
from compress.registry import build, schema
from compress.stages.quantize.spec import Spec
from compress.stages.share.conversion import LayerStatistics, convert

CONFIG = EncoderConfig.uniform(vocabulary=50, hidden=32, layers=4, heads=4, feed_forward=64, initializer_range=0.2)


@pytest.mark.parametrize("scheme", ["per-token", "static"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_prepared_model_rounds_the_matrix_that_layers_share(scheme: str, rank: int) -> None:
    plain = Model(CONFIG, {"task": HeadConfig("classification", labels=3)}).initialize(0).eval()
    start = build(
        "compress.stages.share.starts", schema("compress.stages.share.starts", "mean").model_validate({"kind": "mean"})
    )
    groups = LayerGroups((0, 0, 1, 1), (0, 0, 1, 1))
    shared = convert(plain, groups, start, own_vectors=True, residual_rank=rank, known=LayerStatistics()).eval()
    made = quantize_model(
        shared, plan_quantization(Spec.model_validate({"kind": "quantize", "scheme": scheme}), shared), "x"
    ).eval()
    batch = build_fixed_batch(CONFIG, 4, 9)
    calibrate(made, [batch], lambda: None)
    with torch.no_grad():
        expected = made(batch, Needs(logits=True)).logits
    found = prepare(made)(batch, Needs(logits=True)).logits
    assert expected is not None
    assert found is not None
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert made(batch, Needs(logits=True)).logits is not None, "the model itself is as it was"

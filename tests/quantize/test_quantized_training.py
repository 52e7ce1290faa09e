"""Training with rounded numbers: a student born quantized, ranges that stand still, and what a run leaves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.integers.fake_quantized import list_quantized_modules
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.predict.predictor import build_fixed_batch
from compress.run.choice import Candidate, best_of, sentences
from compress.stages.distill import quantization_aware as rounding
from compress.stages.distill.quantization_aware import Ranges, add_quantizers, set_dropout
from compress.stages.distill.spec import Spec

CONFIG = EncoderConfig.uniform(vocabulary=50, hidden=32, layers=2, heads=4, feed_forward=64)
BATCH = build_fixed_batch(CONFIG, 4, 9)
CUT = {"layers": [0, 1]}


def small() -> Model:
    return Model(CONFIG, {"task": HeadConfig("classification", labels=3)}).eval()


def asked(**values: Any) -> Spec:
    values = {"kind": "distill", "level": "task_specific", "objectives": [{"kind": "hard_labels"}], **values}
    return Spec.model_validate({**values, "training": {"steps": 10}})


def born(spec: Spec, precision: str = "fp32", model: Model | None = None) -> Model:
    context: Any = SimpleNamespace(
        precision=precision, say=lambda line: None, workshop=SimpleNamespace(stop=lambda: None)
    )
    return add_quantizers(model or small(), spec, context, lambda: [BATCH])


def logits_of(model: Model) -> torch.Tensor:
    found = model(BATCH, Needs(logits=True)).logits
    assert found is not None
    return found


@pytest.mark.parametrize("scheme", ["per-token", "static-ema", "lsq-plus", "q8bert", "int4"])
def test_a_student_is_born_quantized_and_learns(scheme: str) -> None:
    model = born(asked(student=CUT, quantize={"scheme": scheme})).train()
    assert "encoder.layers.1.feed_forward.down" in list_quantized_modules(model)
    logits_of(model).square().sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.encoder.layers.parameters())


def test_nothing_is_rounded_unasked() -> None:
    model = small()
    assert born(asked(), precision="bf16", model=model) is model


@pytest.mark.parametrize("scheme", ["static", "static-percentile", "static-mse", "static-kl"])
def test_fixed_ranges_are_for_trained_students(scheme: str) -> None:
    born(asked(quantize={"scheme": scheme}))
    with pytest.raises(UserError) as error:
        born(asked(student=CUT, quantize={"scheme": scheme}))
    assert error.value.line().startswith(
        "quantize, encoder.layers.0.attention.query: static activation ranges cannot be calibrated on an untrained "
        "student"
    )


def test_what_would_not_be_deployed_is_refused() -> None:
    with pytest.raises(UserError, match="a quantized student cannot be trained in bf16"):
        born(asked(quantize={}), precision="bf16")
    with pytest.raises(UserError, match="the model is quantized already"):
        born(asked(quantize={}), model=born(asked(quantize={})))
    with pytest.raises(UserError, match="'decoder' matches no matrix or table"):
        born(asked(quantize={"rules": [{"pattern": "decoder", "weight": {"kind": "per_channel"}}]}))


def test_ranges_stand_still_after_their_share() -> None:
    model = born(asked(quantize={"scheme": "static-ema"})).train()
    ranges = Ranges(model, asked(freeze_ranges=0.5))
    scale: Any = model.get_buffer("encoder.layers.0.attention.query.input_quantizer.scale")
    for done, moves in ((0, True), (4, True), (5, False), (9, False)):
        ranges.pace(done, 10)
        before = scale.clone()
        torch.nn.init.constant_(model.get_parameter("encoder.embeddings.norm.weight"), 2.0 + done)
        logits_of(model)
        assert torch.equal(scale, before) != moves, done


def test_ranges_that_cannot_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"the student has no ranges updated by the batches \(EMA\)"):
        Ranges(born(asked(quantize={})), asked(freeze_ranges=0.5))
    monkeypatch.setattr(rounding.distributed, "current", lambda: object())
    Ranges(born(asked(quantize={"scheme": "static"})), asked())
    with pytest.raises(UserError) as error:
        Ranges(born(asked(quantize={"scheme": "q8bert"})), asked())
    assert error.value.line().startswith("torchrun: EMA activation ranges only work in a single process")


def test_dropout_of_a_student_that_trains() -> None:
    model = set_dropout(small(), 0.0).train()
    assert torch.equal(logits_of(model), logits_of(model))
    assert model.config.dropout == 0.1, "what is written is what it was"
    model = set_dropout(small(), None).train()
    assert not torch.equal(logits_of(model), logits_of(model))


def candidates(*values: float) -> list[Candidate]:
    names = ("PTQ", "QAT alone", "QAT + distillation")
    return [Candidate(name, "", Path(name), value) for name, value in zip(names, values, strict=True)]


def test_what_was_there_before_stays_unless_it_is_beaten() -> None:
    assert best_of(candidates(0.9, 0.9, 0.9)).name == "PTQ"
    assert best_of(candidates(0.9, 0.91, 0.91)).name == "QAT alone"
    assert sentences(candidates(0.9, 0.9, 0.912), "accuracy") == [
        "selected: QAT + distillation, accuracy 91.20 % on validation; PTQ 90.00, QAT alone 90.00"
    ]
    assert sentences(candidates(0.9, 0.9, 0.9), "accuracy")[1] == (
        "training did not improve it: QAT alone and QAT + distillation did not score higher than PTQ on validation"
    )

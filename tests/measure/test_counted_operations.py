"""Operations of a sequence: of all texts that are timed, each length counted once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compress.contracts import Needs
from compress.encoder.modules.model import Model
from compress.measure import models
from compress.measure.models import _Shaped
from compress.predict.predictor import build_fixed_batch
from evaluation.cost.flops import count_flops


def shaped(model: Model, lengths: list[int]) -> Any:
    """A model whose latency is of texts of these lengths."""
    found: Any = _Shaped.__new__(_Shaped)
    found.predictor = SimpleNamespace(model=model, device="cpu")
    found._texts, found._batches = object(), [build_fixed_batch(model.config, 1, length) for length in lengths]
    return found


def test_texts_of_equal_length_are_counted_once(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    one = shaped(tiny_model, [4, 9, 9, 4, 9])
    every = [count_flops(lambda b=batch: tiny_model(b, Needs(logits=True))) for batch in one._batches]
    counted = []
    monkeypatch.setattr(models, "count_flops", lambda call: counted.append(1) or count_flops(call))
    assert one.gflops() == pytest.approx(sum(every) / 5 / 1e9, rel=1e-12)
    assert len(counted) == 2
    assert shaped(tiny_model, [9]).gflops() > one.gflops() > shaped(tiny_model, [4]).gflops()

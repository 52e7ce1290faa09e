"""Operations of a sequence: each length is counted once for models of one shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from compress.contracts import Batch, Needs
from compress.encoder.config.encoder import HeadConfig
from compress.encoder.modules.model import Model
from compress.measure import operations
from compress.measure.operations import count_gflops
from compress.predict.predictor import build_fixed_batch
from evaluation.cost.flops import count_flops


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each count."""
    found: list[int] = []

    def count(call: Callable[[], Any]) -> int:
        found.append(1)
        return count_flops(call)

    monkeypatch.setattr(operations, "count_flops", count)
    monkeypatch.setattr(operations, "_COUNTED", {})
    return found


def texts(model: Model, *lengths: int) -> list[Batch]:
    return [build_fixed_batch(model.config, 1, length) for length in lengths]


def test_texts_of_equal_length_are_counted_once(tiny_model: Model, counted: list[int]) -> None:
    batches = texts(tiny_model, 4, 9, 9, 4, 9)
    every = [count_flops(lambda b=batch: tiny_model(b, Needs(logits=True))) for batch in batches]
    assert count_gflops(tiny_model, batches, "cpu") == pytest.approx(sum(every) / 5 / 1e9, rel=1e-12)
    assert len(counted) == 2


def test_models_of_one_shape_are_counted_once_and_others_anew(tiny_model: Model, counted: list[int]) -> None:
    (batch,) = texts(tiny_model, 7)
    twin = Model(tiny_model.config, tiny_model.head_configs).initialize(9).eval()
    other = Model(tiny_model.config, {"task": HeadConfig("classification", labels=64)}).initialize(1).eval()
    one, two, three = (count_gflops(model, [batch], "cpu") for model in (tiny_model, twin, other))
    assert one == two != three
    assert len(counted) == 2


def test_what_has_no_shape_of_its_own_is_counted_each_time(counted: list[int], tiny_model: Model) -> None:
    class Joint(nn.Module):
        def forward(self, batch: Batch, needs: Needs) -> torch.Tensor:
            return torch.zeros(2, len(batch.input_ids)) @ torch.zeros(len(batch.input_ids), 3)

    joint: Any = Joint()
    assert count_gflops(joint, texts(tiny_model, 5, 5), "cpu") == 2 * 2 * 5 * 3 / 1e9
    count_gflops(joint, texts(tiny_model, 5), "cpu")
    assert len(counted) == 2


def test_few_counts_are_kept(tiny_model: Model, counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MOST", 2)
    count_gflops(tiny_model, texts(tiny_model, 3, 4, 5, 6, 7), "cpu")
    assert len(operations._COUNTED) <= 2
    assert len(counted) == 5

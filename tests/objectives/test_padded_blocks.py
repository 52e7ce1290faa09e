"""Losses that relate tokens of a sequence: computed block by block, with padding, as on a GPU, they are what they are
sequence by sequence, and so are their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from objective_cases import batch_of
from torch import Tensor

from compress.contracts import Batch
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.modules.layout import PackedLayout
from compress.encoder.modules.model import Model
from compress.registry import load

LENGTHS = [2, 3, 3, 4, 9, 1]
CONFIG = EncoderConfig.uniform(vocabulary=64, hidden=8, layers=2, heads=2, feed_forward=8)
TEACHER, STUDENT = (Model(CONFIG).initialize(seed).double().eval() for seed in (1, 2))
PAIR = ModelPair(CONFIG, CONFIG, ((0, 0), (1, 1)))


def compute(kind: str, options: dict[str, Any], batch: Batch) -> tuple[Tensor, list[Tensor]]:
    objective = load("compress.objectives", kind)(**options)
    objective.bind(PAIR)
    with torch.no_grad():
        theirs = TEACHER(batch, objective.teacher_needs)
    STUDENT.zero_grad()
    value = objective(STUDENT(batch, objective.student_needs), theirs, batch)
    value.backward()
    return value.detach(), [p.grad for p in STUDENT.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("attention_maps", {}),
        ("attention_maps", {"distance": "kl"}),
        ("minilm", {}),
        ("minilmv2", {"relation_heads": 4}),
        ("minilmv2", {"relation_heads": 1}),
    ],
)
def test_padding_changes_nothing(kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(LENGTHS)
    plain, expected = compute(kind, options, batch)
    share = [length**2 if options.get("distance", "scores") == "scores" else length for length in LENGTHS]
    if kind != "attention_maps":
        share = LENGTHS
    rows = zip(batch.cu_seqlens.tolist(), share, LENGTHS, strict=False)
    alone = [s * compute(kind, options, _cut(batch, start, length))[0] for start, s, length in rows]
    torch.testing.assert_close(torch.stack(alone).sum() / sum(share), plain, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr(PackedLayout, "pads", True)
    batch = batch_of(LENGTHS)
    assert 1 < len(PackedLayout.of(batch).blocks) < len(LENGTHS)
    value, gradients = compute(kind, options, batch)
    assert value > 0
    torch.testing.assert_close(value, plain, rtol=1e-9, atol=1e-12)
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


def _cut(batch: Batch, start: int, length: int) -> Batch:
    """One sequence of it."""
    alone = batch_of([length])
    return Batch(
        batch.input_ids[start : start + length], alone.segment_ids, alone.position_ids, alone.cu_seqlens, length,
        alone.row_ids,
    )  # fmt: skip

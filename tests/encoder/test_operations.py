"""Operations by arithmetic are those that torch's dispatcher counts."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from compress.contracts import Batch, Needs
from compress.data.batches.examples import pack
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.heads import DenseShape
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.modules.operations import count_operations, count_pairs
from compress.objectives import hard_labels, soft_targets
from compress.training.module import StageModule
from evaluation.cost.flops import count_flops
from evaluation.cost.roofline import Shape, count_forward, count_training

PLAIN = EncoderConfig.uniform(
    vocabulary=40, hidden=16, layers=2, heads=2, feed_forward=24, max_positions=16, dropout=0.0, attention_dropout=0.0
)
CLASSES = HeadConfig("classification", labels=3)
UNEVEN = (LayerShape(1, 8, 20), LayerShape(2, 8, 24, ranks=(("feed_forward.up", 4), ("attention.query", 3))))


def batch_of(*lengths: int) -> Batch:
    total = sum(lengths)
    zeros = np.zeros(total, dtype=np.uint8)
    at = np.arange(0, total, 3)
    return pack(
        5 + np.arange(total) % 30, np.concatenate([[0], np.cumsum(lengths)]), segments=zeros, special=zeros > 0,
        row_ids=np.arange(len(lengths)), labels=np.arange(len(lengths)) % 3, mlm_positions=at, mlm_labels=at % 30 + 5,
    )  # fmt: skip


def read(model: Model, batch: Batch, needs: Needs) -> None:
    output = model(batch, needs)
    if output.vocabulary is not None:
        output.vocabulary.logits()


@pytest.mark.parametrize(
    ("changes", "head", "needs"),
    [
        ({}, CLASSES, Needs(logits=True)),
        ({}, CLASSES, Needs(hidden_states=True)),
        ({"layers": UNEVEN}, CLASSES, Needs(logits=True)),
        ({"gated": True, "pooler": False}, HeadConfig("token_classification", labels=5), Needs(logits=True)),
        ({"layer_groups": (0, 0)}, HeadConfig("classification", style="distilbert"), Needs(logits=True)),
        ({"pooler": False}, HeadConfig("classification", style="modernbert", pooling="mean"), Needs(logits=True)),
        ({}, HeadConfig("masked_lm"), Needs(mlm="masked")),
        ({"embedding": 8}, HeadConfig("masked_lm"), Needs(mlm="all")),
        ({"embedding": 8}, HeadConfig("masked_lm", tied_projection=True), Needs(mlm="masked")),
        ({}, HeadConfig("sentence_pair"), Needs(pair_logits=True)),
        ({}, HeadConfig("replaced_token"), Needs(replaced=True)),
        ({}, HeadConfig("embedding", labels=4, pooling="mean", denses=(DenseShape(4),)), Needs(logits=True)),
    ],
)
def test_a_forward_pass(changes: dict[str, Any], head: HeadConfig, needs: Needs) -> None:
    model = Model(dataclasses.replace(PLAIN, **changes), {head.name: head}).eval()
    batch = batch_of(6, 6, 6)
    assert count_operations(model, batch, needs) == count_flops(lambda: read(model, batch, needs))


def test_rows_of_any_lengths_and_the_roofline() -> None:
    model, needs = Model(PLAIN, {"task": CLASSES}), Needs(hidden_states=True)
    rows = [count_operations(model, batch_of(length), needs) for length in (3, 7, 12)]
    counted = count_operations(model, batch_of(3, 7, 12), needs)
    assert counted == sum(row or 0 for row in rows)
    assert counted == count_forward(Shape(2, 16, 24, 2, 40), 22, (9 + 49 + 144) / 22).flops


def test_pairs_within_a_window() -> None:
    for length in range(1, 8):
        at = np.arange(length)
        for window in (None, 1, 3, 20):
            seen = np.abs(at[:, None] - at) <= (length if window is None else window)
            assert count_pairs(np.array([length]), window) == seen.sum(), (length, window)
    assert count_pairs(np.array([2, 5]), 1) == 4 + 13


def test_a_step_of_distillation() -> None:
    """Forward and backward, and the teacher's forward pass."""
    batch, needs = batch_of(6, 6, 6), Needs(logits=True)
    teacher, student = (
        Model(dataclasses.replace(PLAIN, layers=PLAIN.layers[:depth]), {"task": CLASSES}).eval() for depth in (2, 1)
    )
    objectives = {"soft": (1.0, soft_targets.Objective(on="task")), "hard": (1.0, hard_labels.Objective())}
    module = StageModule(student, objectives, prepared := prepare(teacher))
    answers = prepared(batch, needs)
    with FlopCounterMode(display=False) as seen, sdpa_kernel(SDPBackend.MATH):
        torch.stack([term.value for term in module(batch, answers).values()]).sum().backward()
    counted = module.count_operations(batch)
    assert counted == seen.get_total_flops() + count_flops(lambda: teacher(batch, needs))
    shapes = [Shape(depth, 16, 24, 2, 40) for depth in (2, 1)]
    heads = 4 * 3 * 2 * (16 * 16 + 16 * 3)  # pooler and classifier of 3 rows, three times of the student
    assert counted == count_training(shapes[0], shapes[1], 18, 6.0, kernels=0).flops + heads


def test_what_is_not_known() -> None:
    dropping = Model(dataclasses.replace(PLAIN, kept_tokens=(50, 50)), {"task": CLASSES})
    assert count_operations(dropping, batch_of(6), Needs(logits=True)) is None
    assert count_operations(SimpleNamespace(), batch_of(6), Needs()) is None
    hard: dict[str, Any] = {"hard": (1.0, hard_labels.Objective())}
    assert StageModule(dropping, hard).count_operations(batch_of(6)) is None

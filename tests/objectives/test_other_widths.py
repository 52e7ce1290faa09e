"""Every objective between two models that agree in nothing: it learns, or says before training what would."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from objective_cases import batch_of

from compress import registry
from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.training.module import StageModule

TEACHER = EncoderConfig.uniform(vocabulary=30, hidden=24, layers=3, heads=4, feed_forward=32)
NARROW = EncoderConfig.uniform(vocabulary=30, hidden=12, layers=2, heads=4, feed_forward=8)
FEWER = EncoderConfig.uniform(vocabulary=30, hidden=12, layers=2, heads=3, feed_forward=8)
WIDE = EncoderConfig.uniform(vocabulary=30, hidden=36, layers=2, heads=6, feed_forward=8)
UNEVEN = dataclasses.replace(NARROW, layers=(LayerShape(2, 4, 9), LayerShape(3, 8, 5)))
HEADS = {
    head.name: head
    for head in (
        HeadConfig("masked_lm"),
        HeadConfig("classification", labels=3),
        HeadConfig("sentence_pair"),
        HeadConfig("replaced_token"),
    )
}
BATCH = batch_of(
    [5, 5, 4, 3],
    labels=torch.tensor([2, 0, 1, 1]),
    mlm_positions=torch.tensor([1, 7]),
    mlm_labels=torch.tensor([4, 1]),
    pair_labels=torch.tensor([1, 0, 1, 1]),
    extra={"replaced": torch.tensor([0.0, 1.0] + 15 * [0.0]), "queries": torch.tensor([0, 0, 1, 1])},
)
BY_HEAD = {"attention_maps", "minilm"}
KINDS = sorted(registry.parts("compress.objectives"))


def bound(kind: str, student: EncoderConfig, **options: Any) -> Any:
    objective = registry.load("compress.objectives", kind)(**options)
    if hasattr(objective, "bind"):
        objective.bind(ModelPair(student, TEACHER, ((0, 0), (1, 2))))
    return objective


@pytest.mark.parametrize("shape", [NARROW, FEWER, WIDE, UNEVEN], ids=["narrow", "fewer heads", "wide", "uneven"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_or_says_what_would(kind: str, shape: EncoderConfig) -> None:
    if kind in BY_HEAD and shape is not NARROW:
        with pytest.raises(
            UserError, match=r"compares .* head by head; use minilmv2, which supports different numbers of heads"
        ):
            bound(kind, shape)
        return
    objective, student = bound(kind, shape), Model(shape, HEADS).initialize(1)
    module = StageModule(student, {kind: (1.0, objective)}, prepare(Model(TEACHER, HEADS).initialize(2)))
    terms = module(BATCH)
    assert terms[kind].value.isfinite()
    terms[kind].value.backward()
    read = [p.grad for p in student.parameters() if p.grad is not None]
    assert read
    assert all(g.isfinite().all() for g in read)
    assert any(g.abs().max() > 0 for g in read)
    assert all(p.grad is not None for p in objective.parameters()), "a projection that nothing trains"


@pytest.mark.parametrize("kind", ["cosine_hidden", "embeddings", "hidden_mse", "pkd"])
def test_projections_are_made_only_where_widths_differ_and_can_be_declined(kind: str) -> None:
    same = dataclasses.replace(TEACHER, layers=TEACHER.layers[:2])
    assert not list(bound(kind, same).parameters())
    assert [tuple(p.shape) for p in bound(kind, NARROW).parameters()] == [(24, 12), (24,)]
    with pytest.raises(
        UserError,
        match=r"teacher and student have different widths.*hidden size is 24, the student's 12; use projection: shared",
    ):
        bound(kind, NARROW, projection="none")


def test_relation_heads_that_do_not_divide_both_widths_are_refused() -> None:
    with pytest.raises(UserError, match=r"5 relation heads do not divide both attention widths.*use a divisor of 12"):
        bound("minilmv2", NARROW, relation_heads=5)


def test_the_needs_of_a_teacher_are_read_at_its_own_width() -> None:
    teacher = Model(TEACHER, HEADS)
    assert teacher(BATCH, Needs(hidden_states=True)).last_hidden.shape == (17, 24)

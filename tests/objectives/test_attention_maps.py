"""Attention maps: padding-free rows, heads that are certain, and layers that are not compared."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from objective_cases import ar, batch_of, leaf
from torch import Tensor

from compress.contracts import EncoderOutput, Needs
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.layer_maps import ModelPair
from compress.errors import UserError
from compress.objectives.attention_maps import Objective

BATCH = batch_of([2, 1])


def config(heads: int, layers: int = 1) -> EncoderConfig:
    return EncoderConfig.uniform(vocabulary=9, hidden=6, layers=layers, heads=heads, feed_forward=8)


def bound(distance: Any = "scores", **changes: Any) -> Objective:
    given: dict[str, Any] = {"student": config(2), "teacher": config(2), "pairs": ((0, 0),)} | changes
    made = Objective(distance=distance)
    made.bind(ModelPair(**given))
    return made


def maps(distance: str, *layers: list[Tensor]) -> EncoderOutput:
    if distance == "scores":
        return EncoderOutput(torch.zeros(3, 6), attention_scores=layers)
    return EncoderOutput(torch.zeros(3, 6), attentions=layers)


def rows(b: float) -> list[Tensor]:
    return [ar((2, n, n), 1, b + n) for n in (2, 1)]


@pytest.mark.parametrize("distance", ["scores", "kl"])
def test_equal_maps_cost_nothing_and_have_no_gradient(distance: str) -> None:
    plain = rows(0.1) if distance == "scores" else [x.softmax(-1) for x in rows(0.1)]
    ours = [leaf(x) for x in plain]
    value = bound(distance)(maps(distance, ours), maps(distance, plain), BATCH)
    assert value.item() == pytest.approx(0, abs=1e-12)
    value.backward()
    if distance == "scores":
        assert all(x.grad is not None and not x.grad.any() for x in ours)


def test_a_score_counts_the_same_in_every_row() -> None:
    """One of 4 + 1 pairs of tokens, in one of two heads, differs by 3: 9 / 2 / 5, wherever it is."""
    for row in (0, 1):
        ours = rows(0.1)
        ours[row] = ours[row].clone()
        ours[row][1, 0, 0] += 3
        assert bound()(maps("scores", ours), maps("scores", rows(0.1)), BATCH).item() == pytest.approx(9 / 2 / 5)


def test_certain_heads_give_a_finite_divergence() -> None:
    """A probability of 0 in the student where the teacher is certain, and the other way around."""
    ours, theirs = torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    ours[..., 0], theirs[..., 1] = 1, 1
    student = [leaf(x) for x in ours]
    batch = batch_of([2, 2])
    made = bound("kl", student=config(1), teacher=config(1))
    value = made(maps("kl", student), maps("kl", list(theirs)), batch)
    assert 10 < value.item() < math.inf
    value.backward()
    assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in student)


def test_half_precision_is_summed_in_single() -> None:
    small = [torch.full((2, 200, 200), 1e-4, dtype=torch.half)]
    zero = [torch.zeros(2, 200, 200, dtype=torch.half)]
    value = bound()(maps("scores", small), maps("scores", zero), batch_of([200]))
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(1e-8, rel=1e-2), "in fp16 the square would be 0"


def test_only_the_layers_of_the_map_are_asked_for_and_need_equal_heads() -> None:
    made = bound(teacher=config(2, 3), pairs=((0, 2),))
    assert made.teacher_needs == Needs(attention_scores=frozenset({2}))
    assert bound("kl").teacher_needs == Needs(attentions=frozenset({0}))
    with pytest.raises(UserError, match="student layer 0 has 3 heads, teacher layer 0 has 2"):
        bound(student=config(3))
    with pytest.raises(UserError, match="3 heads"):
        bound(student=config(3), pairs=(), choice="learned")


def test_a_model_that_gave_no_maps() -> None:
    with pytest.raises(UserError, match="the model's output has no attention maps"):
        bound()(maps("kl", rows(0.1)), maps("scores", rows(0.1)), BATCH)
    with pytest.raises(UserError, match="needs a teacher"):
        bound()(maps("scores", rows(0.1)), None, BATCH)


def test_terms_of_a_batch() -> None:
    assert bound().count(BATCH) == 4 + 1
    assert bound("kl").count(BATCH) == 3
    nothing = bound()(maps("scores", []), maps("scores", []), batch_of([]))
    assert nothing.item() == 0

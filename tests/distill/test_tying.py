"""Layers that come together while a student trains: residuals that fade out, and a penalty that pulls."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, LayerGroups, Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.sharing import Sharing
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import measure_distances, scale_residuals
from compress.encoder.reshape.students import remove_residuals
from compress.errors import UserError
from compress.stages.distill.tying import ProximityRegularizer, ResidualShrinking, Tying
from compress.stages.distill.tying_spec import ProximitySpec, ShrinkSpec
from compress.training.module import StageModule
from compress.training.schedule import ramp

CONFIG = EncoderConfig.uniform(vocabulary=40, hidden=8, layers=4, heads=2, feed_forward=12, max_positions=16)
PAIRS = Sharing((0, 0, 1, 1), (0, 0, 1, 1), residual_rank=2)
HEADS = {"task": HeadConfig("classification", labels=2)}


def made(**changes: Any) -> Model:
    built, random = Model(dataclasses.replace(CONFIG, **changes), HEADS).eval(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.2)
    return built


def batch() -> Batch:
    ids = torch.arange(12) + 3
    positions = torch.tensor([*range(7), *range(5)])
    return Batch(ids, torch.zeros(12, dtype=torch.long), positions, torch.tensor([0, 7, 12]), 7, torch.arange(2))


def logits(model: Model) -> Tensor:
    found = model(batch(), Needs(logits=True)).logits
    assert found is not None
    return found


class Squares(nn.Module):
    """An objective that reads logits."""

    student_needs, teacher_needs = Needs(logits=True), None

    def count(self, batch: Batch) -> int:
        return batch.rows

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        assert student.logits is not None
        return student.logits.square().mean()


# --- residuals ----------------------------------------------------------------------------------------------------


def test_a_ramp_stands_still_rises_and_stands_still() -> None:
    assert [ramp(done, 10, 0.2, 0.6) for done in (0, 2, 3, 4, 6, 10)] == pytest.approx([0, 0, 0.25, 0.5, 1, 1])
    assert ramp(0, 1, 0.0, 1.0) == 0.0


@pytest.mark.parametrize("own_vectors", [True, False])
def test_residuals_fade_and_are_gone_from_what_is_kept(own_vectors: bool) -> None:
    student = made(sharing=dataclasses.replace(PAIRS, own_vectors=own_vectors))
    whole = logits(student)
    shrinking = ResidualShrinking(student, ShrinkSpec(begin=0.0, end=0.5))
    shrinking.pace(0, 10)
    assert torch.equal(logits(student), whole)
    shrinking.pace(2, 10)
    assert not torch.allclose(logits(student), whole)
    shrinking.pace(7, 10)
    kept = remove_residuals(student)
    assert kept.config.sharing == (None if not own_vectors else dataclasses.replace(PAIRS, residual_rank=0))
    assert kept.config.layer_groups == (None if own_vectors else (0, 0, 1, 1))
    torch.testing.assert_close(logits(kept), logits(student))
    assert sum(p.numel() for p in kept.parameters()) < sum(p.numel() for p in student.parameters())


def test_validation_is_of_what_is_kept() -> None:
    student = made(sharing=PAIRS)
    shrinking = ResidualShrinking(student, ShrinkSpec())
    shrinking.pace(1, 10)
    before = logits(student)
    seen: list[Tensor] = []

    def validate(_: nn.Module) -> dict[str, float]:
        seen.append(logits(student))
        return {"accuracy": 1.0}

    assert shrinking.wrap_validation(validate)(student) == {"accuracy": 1.0}
    torch.testing.assert_close(seen[0], logits(remove_residuals(student)))
    assert torch.equal(logits(student), before)


def test_a_faded_residual_gets_no_gradient() -> None:
    student = made(sharing=PAIRS)
    scale_residuals(student, 0.0)
    logits(student).square().sum().backward()
    layer: Any = student.encoder.layers[1]
    assert not layer.attention.query.residual_up.grad.any()
    assert layer.attention.query.weight.grad.any()


@pytest.mark.parametrize(
    ("sharing", "why"),
    [
        (None, "its layers share no parameters"),
        (dataclasses.replace(PAIRS, residual_rank=0), "its shared layers have none"),
    ],
)
def test_a_student_without_residuals_is_told(sharing: Sharing | None, why: str) -> None:
    with pytest.raises(UserError) as error:
        ResidualShrinking(made(sharing=sharing), ShrinkSpec())
    assert str(error.value) == (
        f"shrink_residuals: the student has no residuals to shrink: {why}; set residual_rank in the share stage "
        "before it, or remove this key"
    )


# --- layers that are drawn together -------------------------------------------------------------------------------


def test_the_distance_of_equal_layers_is_0_and_of_strangers_what_is_said() -> None:
    model = made()
    groups = LayerGroups((0, 0, 0, 1), (0, 0, 0, 1))
    found = measure_distances(list(model.encoder.layers), groups)
    assert list(found) == [("attention", (0, 1, 2)), ("feed_forward", (0, 1, 2))]
    first: Any = model.encoder.layers[0]
    for layer in list(model.encoder.layers)[1:]:
        layer.load_state_dict(first.state_dict())
    assert [d.item() for d in measure_distances(list(model.encoder.layers), groups).values()] == pytest.approx(
        [0, 0], abs=1e-9
    )
    opposite: Any = model.encoder.layers[1]
    with torch.no_grad():
        for parameter in opposite.parameters():
            parameter.neg_()
    two = measure_distances(list(model.encoder.layers)[:2], LayerGroups((0, 0), (0, 0)))
    assert [d.item() for d in two.values()] == pytest.approx([1, 1])


@pytest.mark.parametrize("groups", [2, [[0, 1], [2, 3]]])
def test_the_penalty_draws_layers_together(groups: Any) -> None:
    student = made()
    pulling = ProximityRegularizer(student, ProximitySpec(groups=groups, weight=10.0, begin=0.0, end=0.5))
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    first = float(pulling.distance().detach())
    for step in range(40):
        pulling.pace(step, 40)
        value, factor = pulling.penalty()
        optimizer.zero_grad()
        (value * factor).backward()
        optimizer.step()
    assert pulling.factor == 10.0 * 2 * 6
    assert float(pulling.distance().detach()) < 0.2 * first


def test_the_term_counts_once_in_a_step_of_several_micro_batches_and_not_in_validation() -> None:
    student = made()
    module = StageModule(
        student, {"squares": (1.0, Squares())}, companions=[ProximityRegularizer(student, ProximitySpec(groups=2))]
    )
    module.pace(5, 10)
    module.train()
    terms = [module(batch()), module(batch())]
    counts = module.counts(batch())["layers_apart"]
    assert counts == 12
    shares = [term["layers_apart"].value * term["layers_apart"].count / (2 * counts) for term in terms]
    torch.testing.assert_close(shares[0] + shares[1], terms[0]["layers_apart"].value)
    assert "layers_apart" not in module.eval()(batch())


def test_the_distance_is_told_before_and_after() -> None:
    said: list[str] = []
    context: Any = SimpleNamespace(say=said.append)
    spec: Any = SimpleNamespace(shrink_residuals=None, proximity=ProximitySpec(groups=2))
    student = made()
    tying = Tying(spec, student, context)
    first: Any = student.encoder.layers[0]
    student.encoder.layers[1].load_state_dict(first.state_dict())
    figures = tying.report_distances(student, 3)
    assert figures["layers_apart"] < figures["layers_apart_before"]
    assert said == [
        f"distance between the layers to be tied: {figures['layers_apart_before']:.3f} before, "
        f"{figures['layers_apart']:.3f} now (0: equal)"
    ]
    assert tying.finish_student() is student


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (5, "proximity.groups: 5 groups of 4 layers; use 1..4"),
        (4, "proximity.groups: every group has a single layer; use fewer groups, or remove proximity"),
        (
            [[0, 1]],
            "proximity.groups: the groups do not cover layers 2, 3: the model's layers are 0..3; "
            "add [2], [3] to keep them unshared",
        ),
    ],
)
def test_groups_that_do_not_fit(groups: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        ProximityRegularizer(made(), ProximitySpec(groups=groups))
    assert str(error.value) == message


def test_layers_of_different_shapes_are_not_drawn_together() -> None:
    shapes = (LayerShape(2, 4, 12), LayerShape(2, 4, 8), LayerShape(2, 4, 12), LayerShape(2, 4, 12))
    with pytest.raises(
        UserError, match=r"proximity\.groups: layers 0 and 1 are in one group but have different shapes"
    ):
        ProximityRegularizer(made(layers=shapes), ProximitySpec(groups=2))


@pytest.mark.parametrize(
    ("spec", "values", "message"),
    [
        (ProximitySpec, {"groups": 0}, "found 0, allowed: a number from 1, or lists of layers"),
        (ProximitySpec, {"groups": "two"}, "found the text 'two', allowed"),
        (ProximitySpec, {"groups": [[0, "1"]]}, "allowed: a number from 1, or lists"),
        (ProximitySpec, {"groups": 2, "begin": 0.9}, "begin 0.9 is not before end 0.8"),
        (ShrinkSpec, {"end": 1.5}, "less than or equal to 1"),
    ],
)
def test_what_a_recipe_cannot_say(spec: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**values)

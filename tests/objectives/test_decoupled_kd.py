"""Decoupled distillation: each part reacts to what it is about, and stays finite where a model is certain."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from objective_cases import ar, batch_of, leaf
from torch import Tensor

from compress.contracts import EncoderOutput
from compress.errors import UserError
from compress.objectives.decoupled_kd import Objective


def value(ours: Tensor, theirs: Tensor, labels: list[int], **options: Any) -> Tensor:
    batch = batch_of([1] * len(labels), labels=torch.tensor(labels, dtype=torch.int64))
    outputs = [EncoderOutput(torch.zeros(len(labels), 4), logits=x) for x in (ours, theirs)]
    return Objective(**options)(outputs[0], outputs[1], batch)


TARGET: dict[str, Any] = {"alpha": 1.0, "beta": 0.0, "temperature": 1.0}
OTHERS: dict[str, Any] = {"alpha": 0.0, "beta": 1.0, "temperature": 1.0}


def test_each_part_sees_its_own_difference_alone() -> None:
    """The same odds of the right class with other wrong ones, and the other way around."""
    theirs = torch.tensor([[1.0, 0.0, 0.0]]).double()
    rest = math.log((math.exp(0.0) + math.exp(0.0)) / (math.exp(1.0) + math.exp(-1.0)))
    turned = torch.tensor([[1.0, 1.0 + rest, -1.0 + rest]]).double()
    assert value(turned, theirs, [0], **TARGET).item() == pytest.approx(0, abs=1e-12)
    assert value(turned, theirs, [0], **OTHERS).item() > 0.1
    surer = torch.tensor([[5.0, 0.0, 0.0]]).double()
    assert value(surer, theirs, [0], **OTHERS).item() == pytest.approx(0, abs=1e-12)
    assert value(surer, theirs, [0], **TARGET).item() > 0.1


def test_two_parts_by_hand() -> None:
    ours, theirs = torch.tensor([[0.0, 0.0, 0.0]]).double(), torch.log(torch.tensor([[0.5, 0.375, 0.125]]).double())
    target = 0.5 * math.log(0.5 / (1 / 3)) + 0.5 * math.log(0.5 / (2 / 3))
    others = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert value(ours, theirs, [0], **TARGET).item() == pytest.approx(target)
    assert value(ours, theirs, [0], **OTHERS).item() == pytest.approx(others)
    both = value(ours, theirs, [0], alpha=3.0, beta=2.0, temperature=1.0).item()
    assert both == pytest.approx(3 * target + 2 * others)


def test_the_target_of_a_row_without_a_label_is_what_the_teacher_finds_likeliest() -> None:
    ours, theirs = leaf(ar((3, 4), 2, 0.3)), ar((3, 4), 2, 1.1)
    first, _, last = theirs.argmax(1).tolist()
    assert first != 2 or last != 2
    mixed = value(ours, theirs, [-100, 2, -100])
    torch.testing.assert_close(mixed, value(ours, theirs, [first, 2, last]))
    mixed.backward()
    assert ours.grad is not None
    assert bool((ours.grad.abs().sum(1) > 0).all())


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_certain_models_have_finite_losses_and_gradients(size: float) -> None:
    ours, theirs = leaf(torch.tensor([[size, 0.0, -size]])), torch.tensor([[-size, 0.0, size]])
    found = value(ours, theirs, [0])
    assert math.isfinite(found.item())
    found.backward()
    assert ours.grad is not None
    assert bool(ours.grad.isfinite().all())


def test_half_precision_is_widened() -> None:
    ours, theirs = ar((2, 4), 2, 0.3), ar((2, 4), 2, 1.1)
    half = value(ours.half(), theirs.half(), [0, 3])
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(value(ours, theirs, [0, 3]).item(), rel=1e-2)


@pytest.mark.parametrize(
    "labels", [torch.zeros(2, 3), torch.tensor([0.5, 1.0]), torch.zeros(3, dtype=torch.int64), None]
)
def test_what_is_not_one_class_a_row(labels: Tensor | None) -> None:
    with pytest.raises(UserError, match=r"needs one class per row|the batch has no labels"):
        Objective().count(batch_of([1, 1], labels=labels))


def test_a_teacher_of_other_classes() -> None:
    with pytest.raises(UserError, match="different classes"):
        value(ar((1, 3)), ar((1, 4)), [0])


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_is_a_number_above_zero(temperature: float) -> None:
    with pytest.raises(UserError, match="temperature must be a number above 0"):
        Objective(temperature=temperature)

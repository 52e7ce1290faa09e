"""LAMB against its formula, written out again in fp64; what is not finite changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from compress.contracts import TrainingPlan
from compress.training.lamb import Lamb
from compress.training.optimizer import Optimizer

PLAN = TrainingPlan(
    steps=1, optimizer="lamb", learning_rate=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1, clip_norm=None
)


def module() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 4)


def gradients(made: nn.Linear, step: int) -> None:
    random = torch.Generator().manual_seed(step)
    for parameter in made.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=random)


def test_three_steps_are_those_of_the_paper() -> None:
    made = module()
    own = {name: p.detach().double().clone() for name, p in made.named_parameters()}
    first, second = ({name: torch.zeros_like(p) for name, p in own.items()} for _ in range(2))
    optimizer = Optimizer(made, PLAN)
    for step in range(1, 4):
        gradients(made, step)
        for name, parameter in made.named_parameters():
            assert parameter.grad is not None
            g = parameter.grad.double()
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.99 * second[name] + 0.01 * g * g
            r = (first[name] / (1 - 0.9**step)) / ((second[name] / (1 - 0.99**step)).sqrt() + 1e-6)
            ratio = 1.0
            if parameter.ndim == 2:
                r = r + 0.1 * own[name]
                ratio = float(own[name].norm() / r.norm())
            own[name] = own[name] - 0.01 * ratio * r
        optimizer.step(torch.tensor(1.0))
    for name, parameter in made.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), own[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_what_is_not_finite_changes_nothing(bad: str) -> None:
    made = module()
    optimizer = Optimizer(made, PLAN)
    gradients(made, 1)
    optimizer.step(torch.tensor(1.0))
    before = {**made.state_dict(), **optimizer.state()}
    before = {name: tensor.clone() for name, tensor in before.items()}
    gradients(made, 2)
    if bad == "gradient":
        assert made.weight.grad is not None
        made.weight.grad[0, 0] = float("nan")
    optimizer.step(torch.tensor(float("inf") if bad == "loss" else 1.0))
    after = {**made.state_dict(), **optimizer.state()}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_its_state_goes_on() -> None:
    one, two = module(), module()
    first = Optimizer(one, PLAN)
    gradients(one, 1)
    first.step(torch.tensor(1.0))
    two.load_state_dict(one.state_dict())
    second = Optimizer(two, PLAN)
    second.load({name: tensor.clone() for name, tensor in first.state().items()})
    for made, optimizer in ((one, first), (two, second)):
        gradients(made, 2)
        optimizer.step(torch.tensor(1.0))
    assert torch.equal(one.weight, two.weight)


def test_clipping_divides_the_gradients() -> None:
    clipped = PLAN.model_copy(update={"clip_norm": 1e-3})
    made = module()
    gradients(made, 1)
    optimizer = Optimizer(made, clipped)
    norm = optimizer.step(torch.tensor(1.0))
    state = optimizer.state()
    assert float(norm) > 1
    assert float(state["weight.exp_avg"].norm()) < 0.1 * 1e-3


def stepped(weight: list[float], gradient: list[float], **changes: float) -> list[float]:
    parameter = nn.Parameter(torch.tensor(weight))
    parameter.grad = torch.tensor(gradient)
    Lamb([{"params": [parameter], **changes}], lr=0.1, betas=(0.9, 0.99), eps=0.0 if any(gradient) else 1e-6).step()
    return parameter.tolist()


def test_the_step_is_as_long_as_the_weights_whatever_the_gradient() -> None:
    """The first update is the gradient's sign; it is scaled to the norm of the weights, 5, times the rate."""
    for size in (1e-12, 1.0, 1e12):
        assert stepped([3.0, 4.0], [size, size]) == pytest.approx([3 - 0.5 / 2**0.5, 4 - 0.5 / 2**0.5])
    assert stepped([3.0, 4.0], [1.0, -1.0], adapt=False) == pytest.approx([2.9, 4.1])


def test_weights_or_gradients_of_zero_leave_no_ratio() -> None:
    assert stepped([0.0, 0.0], [1.0, 1.0]) == pytest.approx([-0.1, -0.1])
    assert stepped([3.0, 4.0], [0.0, 0.0]) == [3.0, 4.0]
    assert stepped([3.0, 4.0], [0.0, 0.0], weight_decay=0.5) == pytest.approx([2.7, 3.6])


def test_a_parameter_without_a_gradient_stays_and_has_no_state() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = Lamb([{"params": [first, second]}], lr=0.1, betas=(0.9, 0.99), eps=1e-6)
    first.grad = torch.ones(2)
    optimizer.step()
    assert second.tolist() == [1.0, 1.0]
    assert first in optimizer.state
    assert second not in optimizer.state


def test_scaled_gradients_are_divided_and_a_found_infinity_undoes_the_step() -> None:
    plain, scaled = nn.Parameter(torch.tensor([3.0, 4.0])), nn.Parameter(torch.tensor([3.0, 4.0]))
    for parameter, scale in ((plain, None), (scaled, torch.tensor(1024.0))):
        optimizer = Lamb([{"params": [parameter]}], lr=0.1, betas=(0.9, 0.99), eps=1e-3)
        optimizer.grad_scale = scale
        parameter.grad = torch.tensor([0.5, 2.0]) * (1.0 if scale is None else scale)
        optimizer.step()
    assert torch.equal(plain, scaled)
    before = scaled.tolist()
    optimizer.found_inf = torch.tensor(1.0)
    scaled.grad = torch.tensor([float("inf"), float("nan")])
    optimizer.step()
    assert scaled.tolist() == before
    assert float(optimizer.state[scaled]["step"]) == 1


@pytest.mark.parametrize("scale", [None, 4.0])
def test_all_tensors_together_move_as_each_alone(scale: float | None) -> None:
    """As on a GPU. The first step and the third one are bad, and change nothing."""
    one, other = module(), module()
    rules = [Lamb(_groups(made), 0.01, (0.9, 0.99), 1e-6) for made in (one, other)]
    for step in range(4):
        for made, rule in zip((one, other), rules, strict=True):
            gradients(made, step)
            rule.grad_scale = None if scale is None else torch.tensor(scale)
            rule.found_inf = torch.tensor(float(step % 2 == 0))
            if step % 2 == 0:
                assert made.weight.grad is not None
                made.weight.grad[0, 0] = float("nan")
        before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
        rules[0].step()
        with torch.no_grad():
            for group in rules[1].param_groups:
                rules[1]._move_together(group["params"], group)
        assert all(torch.equal(before[name], x) == (step % 2 == 0) for name, x in other.state_dict().items())
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
        for name, kept in rules[0].state[a].items():
            torch.testing.assert_close(kept, rules[1].state[b][name], rtol=1e-6, atol=1e-7)


def _groups(made: nn.Linear) -> list[dict[str, Any]]:
    return [{"params": [made.weight], "weight_decay": 0.1}, {"params": [made.bias], "adapt": False}]

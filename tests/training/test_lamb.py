"""LAMB against its formula, written out again in fp64; what is not finite changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compress.contracts import TrainingPlan
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
        optimizer.step(torch.tensor(1.0), 0.01)
    for name, parameter in made.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), own[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_what_is_not_finite_changes_nothing(bad: str) -> None:
    made = module()
    optimizer = Optimizer(made, PLAN)
    gradients(made, 1)
    optimizer.step(torch.tensor(1.0), 0.01)
    before = {**made.state_dict(), **optimizer.state()}
    before = {name: tensor.clone() for name, tensor in before.items()}
    gradients(made, 2)
    if bad == "gradient":
        assert made.weight.grad is not None
        made.weight.grad[0, 0] = float("nan")
    optimizer.step(torch.tensor(float("inf") if bad == "loss" else 1.0), 0.01)
    after = {**made.state_dict(), **optimizer.state()}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_its_state_goes_on() -> None:
    one, two = module(), module()
    first = Optimizer(one, PLAN)
    gradients(one, 1)
    first.step(torch.tensor(1.0), 0.01)
    two.load_state_dict(one.state_dict())
    second = Optimizer(two, PLAN)
    second.load({name: tensor.clone() for name, tensor in first.state().items()})
    for made, optimizer in ((one, first), (two, second)):
        gradients(made, 2)
        optimizer.step(torch.tensor(1.0), 0.01)
    assert torch.equal(one.weight, two.weight)


def test_clipping_divides_the_gradients() -> None:
    clipped = PLAN.model_copy(update={"clip_norm": 1e-3})
    made = module()
    gradients(made, 1)
    optimizer = Optimizer(made, clipped)
    norm = optimizer.step(torch.tensor(1.0), 0.01)
    state = optimizer.state()
    assert float(norm) > 1
    assert float(state["weight.exp_avg"].norm()) < 0.1 * 1e-3

"""What shared weights start from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from compress import registry
from compress.contracts import Member

STARTS = "compress.stages.share.starts"
KINDS = tuple(registry.parts(STARTS))


def start(kind: str, **options: Any) -> Any:
    return registry.build(STARTS, registry.schema(STARTS, kind).model_validate({"kind": kind, **options}))


def members(weights: Sequence[Tensor], seed: int = 0) -> list[Member]:
    random = torch.Generator().manual_seed(seed)
    found = []
    for weight in weights:
        x = torch.randn(50, weight.shape[1], generator=random, dtype=torch.float64)
        fisher = torch.rand(weight.shape, generator=random, dtype=torch.float64)
        found.append(Member(weight, x.T @ x / 50, fisher))
    return found


def weights(count: int = 3) -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(4, 5, generator=random, dtype=torch.float64) for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_layers_start_as_they_are(kind: str) -> None:
    one = weights(1)[0]
    made = start(kind)(members([one, one, one]))
    torch.testing.assert_close(made, one)
    assert start(kind).reads in ("nothing", "inputs", "gradients")


@pytest.mark.parametrize("kind", KINDS)
def test_norms_have_no_inputs(kind: str) -> None:
    made = start(kind)([Member(w[:, :1], None, torch.ones(4, 1).double()) for w in weights()])
    assert made.shape == (4, 1)


def test_mean_and_chosen() -> None:
    a, b, c = weights()
    torch.testing.assert_close(start("mean")(members([a, b, c])), (a + b + c) / 3)
    for layer, expected in (("first", a), ("middle", b), ("last", c)):
        assert torch.equal(start("chosen", layer=layer)(members([a, b, c])), expected)


def test_fisher_weighs_each_number_by_its_information() -> None:
    a, b, _ = weights()
    certain = torch.zeros(4, 5).double()
    certain[:, 0] = 1.0
    made = start("fisher", floor=1e-9)([Member(a, None, certain), Member(b, None, 1 - certain)])
    torch.testing.assert_close(made[:, 0], a[:, 0])
    torch.testing.assert_close(made[:, 1:], b[:, 1:])


def test_activation_is_the_least_squares_answer() -> None:
    """No other matrix is nearer to the products of the members on their own inputs."""
    found = members(weights())
    made = start("activation", ridge=1e-12)(found)

    def missed(matrix: Tensor) -> float:
        return sum(float(((matrix - m.weight) @ m.inputs @ (matrix - m.weight).T).trace()) for m in found)  # pyright: ignore

    best = missed(made)
    assert best < missed(start("mean")(found))
    random = torch.Generator().manual_seed(2)
    for _ in range(20):
        assert missed(made + 0.01 * torch.randn(4, 5, generator=random, dtype=torch.float64)) > best

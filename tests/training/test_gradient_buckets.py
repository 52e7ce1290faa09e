"""Gradients travel in buckets: each once, in order, of one type, and none above the limit but one alone."""

from __future__ import annotations

import copy
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from compress.training import gradients
from compress.training.gradients import GradientSum, _parts

LIMIT = 64
"""Bytes."""


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BUCKET", LIMIT)


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([torch.float32, torch.bfloat16])), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts(sizes: list[tuple[int, torch.dtype]]) -> None:
    given_ones = [torch.zeros(n, dtype=kind) for n, kind in sizes]
    parts = list(_parts(given_ones))
    assert [id(g) for part in parts for g in part] == [id(g) for g in given_ones]
    for part in parts:
        assert part
        assert len({g.dtype for g in part}) == 1
        assert len(part) == 1 or sum(g.nbytes for g in part) <= LIMIT
    for part, after in pairwise(parts):
        whole = sum(g.nbytes for g in part) + after[0].nbytes
        assert part[0].dtype != after[0].dtype or whole > LIMIT, "as full as they can be"


class Processes:
    """Others with the same gradients: every number doubles when it arrives. events: in their order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def send(self, flat: torch.Tensor) -> Any:
        self.events.append(f"send {flat.numel()}")
        return SimpleNamespace(wait=lambda: flat.mul_(2))


def _make_layers() -> list[nn.Parameter]:
    """Three of 16 numbers each, a bucket, after one that nothing uses."""
    return [nn.Parameter(torch.zeros(2)), *(nn.Parameter(torch.randn(4, 4)) for _ in range(3))]


def _compute(layers: list[nn.Parameter], x: torch.Tensor) -> torch.Tensor:
    for layer in layers[1:]:
        x = (x @ layer).tanh()
    return x.sum()


def _gradients(layers: list[nn.Parameter]) -> list[torch.Tensor]:
    found = [layer.grad for layer in layers[1:]]
    return [gradient.clone() for gradient in found if gradient is not None]


def test_a_bucket_travels_while_the_last_backward_pass_goes_on() -> None:
    """Of two passes, of which the first sends nothing."""
    others, layers = Processes(), _make_layers()
    for number, layer in enumerate(layers):
        layer.register_post_accumulate_grad_hook(lambda _, number=number: others.events.append(f"gradient {number}"))
    total = GradientSum(layers, others.send)
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    _compute(layers, parts[0]).backward()
    assert others.events == ["gradient 3", "gradient 2", "gradient 1"]
    others.events.clear()
    total.expect_last()
    _compute(layers, parts[1]).backward()
    assert others.events == ["gradient 3", "send 16", "gradient 2", "send 16", "gradient 1", "send 16"]
    total.flush()
    assert others.events[-1] == f"send {gradients.ALIGNED}", "what nothing used travels too"
    total.arrive([0, 2, 2, 2])
    alone = copy.deepcopy(layers)
    for layer in alone:
        layer.grad = None
    (_compute(alone, parts[0]) + _compute(alone, parts[1])).backward()
    assert len(_gradients(layers)) == 3
    for ours, expected in zip(_gradients(layers), _gradients(alone), strict=True):
        torch.testing.assert_close(ours, 2 * expected)


def test_every_process_sends_the_same_whatever_it_computed() -> None:
    """One without rows sends zeros; a parameter that no process used has no gradient afterwards."""
    sent = []
    for computes in (True, False):
        others, layers = Processes(), _make_layers()
        total = GradientSum(layers, others.send)
        if computes:
            total.expect_last()
            _compute(layers, torch.ones(1, 4)).backward()
        total.flush()
        assert total.used == [False, *[computes] * 3]
        total.arrive([0, 1, 1, 1])
        sent.append(others.events)
        assert layers[0].grad is None
        assert [bool(gradient.any()) for gradient in _gradients(layers)] == [computes] * 3
    assert sent[0] == sent[1]


def test_a_step_begins_without_what_the_last_one_left() -> None:
    others, layers = Processes(), _make_layers()
    total = GradientSum(layers, others.send)
    found = []
    for _ in range(2):
        for layer in layers:
            layer.grad = None
        total.begin()
        total.expect_last()
        _compute(layers, torch.ones(1, 4)).backward()
        total.flush()
        total.arrive([0, 1, 1, 1])
        found.append(_gradients(layers))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    total.remove()
    _compute(layers, torch.ones(1, 4)).backward()
    assert len(others.events) == 8, "nothing travels any more"

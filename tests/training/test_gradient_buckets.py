"""Gradients travel in buckets: each once, in order, of one type, and none above the limit but one alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compress.training import gradients
from compress.training.gradients import Bucket, _parts

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


def test_sums_come_back_in_their_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with the same gradients: every number doubles."""

    class Work:
        def wait(self) -> None:
            pass

    def all_reduce(flat: torch.Tensor, group: object, async_op: bool) -> Any:
        assert async_op
        assert group is None, "all processes"
        flat.mul_(2)
        return Work()

    monkeypatch.setattr(gradients.dist, "all_reduce", all_reduce)
    made = [torch.arange(6.0).view(2, 3), torch.tensor(5.0), torch.arange(4.0).view(2, 2).T]
    expected = [2 * g for g in made]
    for bucket in gradients.buckets(made):
        assert isinstance(bucket, Bucket)
        bucket.send()
        bucket.arrive()
    for ours, theirs in zip(made, expected, strict=True):
        assert torch.equal(ours, theirs)

"""The verdict of `benchmarks/soak.py`: what a process holds at the end, beside a tenth of the way."""

from __future__ import annotations

import importlib.util
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module", autouse=True)
def soak() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("soak", PATH)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["soak"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soak"]


def verdict(soak: Any, *memory: float, more: int = 0) -> Any:
    last = len(memory) - 1
    samples = [soak.Sample(i * 10, mb, 10 + more * (i == last), 1) for i, mb in enumerate(memory)]
    return soak.judge("rows", samples, resource.getrusage(resource.RUSAGE_SELF))


def test_what_is_loaded_in_the_first_tenth_is_no_growth(soak: Any) -> None:
    found = verdict(soak, 100, 500, *[510] * 8, 520)
    assert found.flat
    assert (found.early.memory, found.late.memory, found.done) == (500, 520, 100)


@pytest.mark.parametrize(("memory", "more"), [((100, 100, 165), 0), ((100, 100, 100), 5)])
def test_memory_or_handles_that_grow(soak: Any, memory: tuple[float, ...], more: int) -> None:
    assert not verdict(soak, *memory, more=more).flat


def test_this_process_is_seen(soak: Any) -> None:
    sample = soak.look(os.getpid(), 3)
    assert sample is not None
    assert sample.done == 3
    assert sample.memory > 10
    assert sample.handles >= 1
    assert soak.look(2**22 + 1, 0) is None


def test_rows_are_the_same_each_time_and_as_many_as_requested(soak: Any) -> None:
    found = list(soak.texts(25, 1))
    assert found == list(soak.texts(25, 1))
    assert len(found) == 25
    assert {label for _, label in found} == {"negative", "positive"}

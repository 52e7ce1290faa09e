"""What fit says of the parent's time on a GPU: launches by the host, or computation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.fit.cost import gpu_time
from compress.fit.cost.gpu_time import describe_gpu_time
from evaluation.cost.gpu import GpuTime


def serving(device: str = "cuda", runtime: str = "torch", tokens: list[int] | None = None) -> Any:
    texts = None if tokens is None else SimpleNamespace(tokens=np.array(tokens))
    return SimpleNamespace(device=device, runtime=runtime, texts=texts)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Milliseconds that are measured, of calls that are made once."""
    found = {"device": 2.0, "host": 0.5}

    def measure(calls: Any, rounds: int) -> dict[str, GpuTime]:
        return {name: (call(0), GpuTime(found["device"], found["host"], 0.0))[1] for name, call in calls.items()}

    monkeypatch.setattr(gpu_time, "time_in_turns", measure)
    return found


def test_computation_or_launches(times: dict[str, float]) -> None:
    parts: Any = [lambda: None]
    line = describe_gpu_time(parts, serving())
    assert line is not None
    assert line.endswith("2.00 ms for a batch; the host launches its kernels in 0.50 ms")
    times["host"] = 1.9
    line = describe_gpu_time(parts, serving())
    assert line is not None
    assert "2.00 ms for a batch; launching its kernels takes the host as long: fewer layers make it faster" in line


def test_of_texts_the_answer_to_one_of_middle_length_is_timed(times: dict[str, float]) -> None:
    made: list[str] = []
    parts: Any = [lambda n=n: made.append(n) for n in ("tokens a", "a", "tokens b", "b", "tokens c", "c")]
    line = describe_gpu_time(parts, serving(tokens=[40, 9, 12]))
    assert line is not None
    assert "for 12 tokens;" in line
    assert made == ["c"]


def test_elsewhere_there_is_nothing_to_say(times: dict[str, float]) -> None:
    assert describe_gpu_time([], serving(device="cpu")) is None
    assert describe_gpu_time([], serving(runtime="onnxruntime-cuda")) is None

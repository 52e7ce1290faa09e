"""`--runtime auto`: runtimes that answer as the model does are timed, the others are skipped with a reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.data.tables.random_rows import draw_mixed_rows
from compress.errors import UserError
from compress.predict import fastest as choice
from evaluation.cost.latency import Latency

RUNTIMES = {"torch": 5.0, "onnxruntime": 3.0, "openvino": 2.0, "torch-int8": 1.0, "torch-compile": 0.5}


class Predictor:
    """Runs in any runtime; one says that its file is missing."""

    folder, device, precision, reference = Path("m"), "cpu", "fp32", None

    def __init__(self, runtime: str = "torch") -> None:
        self.runtime = runtime

    def with_runtime(self, runtime: str) -> Predictor:
        return Predictor(runtime)

    @property
    def run(self) -> None:
        if self.runtime == "torch-int8":
            raise UserError("the model is not quantized")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is noted when openvino answers otherwise."""
    lines: list[str] = []
    monkeypatch.setattr(choice, "RUNTIMES", tuple(RUNTIMES))
    monkeypatch.setattr(choice, "versions", lambda: dict.fromkeys(RUNTIMES, "1.0"))
    monkeypatch.setattr(choice, "draw_short_rows", lambda _: draw_mixed_rows(9, 4, 2))
    monkeypatch.setattr(choice, "_answer", lambda predictor: predictor)
    wrong = SimpleNamespace(complaint="its outputs differ")
    check = lambda answer, _: wrong if answer.runtime == "openvino" else SimpleNamespace(complaint=None)  # noqa: E731
    monkeypatch.setattr(choice, "compute_reference", lambda *_: SimpleNamespace(check=check))

    def measured(calls: list[Any], **_: Any) -> list[Latency]:
        times = [RUNTIMES[call.__defaults__[0].runtime] for call in calls]
        return [Latency(ms, ms, ms, ms, 20, 1.0 if ms > 3 else 0.5, 0.01) for ms in times]

    monkeypatch.setattr(choice, "measure_interleaved", measured)
    return lines


def chosen(lines: list[str], timed: Any = lambda _: []) -> str:
    quiet = SimpleNamespace(update=lambda *_: None)
    watching = type("Watching", (), {"__enter__": lambda _: quiet, "__exit__": lambda *_: None})
    console: Any = SimpleNamespace(note=lines.append, slow_progress=lambda *_: watching())
    return choice.fastest(Predictor(), timed, "1 x 8 tokens", console).runtime  # type: ignore[arg-type]


def test_the_fastest_of_those_that_answer_alike(said: list[str]) -> None:
    assert chosen(said) == "onnxruntime", "the faster ones answer otherwise, cannot run, or take long to start"
    assert said[:5] == [
        "torch: 5.00 ms for 1 x 8 tokens",
        "onnxruntime: 3.00 ms for 1 x 8 tokens (busy machine)",
        "openvino: skipped: its outputs differ",
        "torch-int8: skipped: the model is not quantized",
        "torch-compile: skipped: compiling takes half a minute; request it with --runtime",
    ]
    assert said[5].startswith("runtime onnxruntime: the fastest of 2 on this machine")


def test_each_is_given_its_own_batches(said: list[str]) -> None:
    asked: list[str] = []
    chosen(said, lambda predictor: asked.append(predictor.runtime) or [])
    assert asked == ["torch", "onnxruntime"]


def test_what_is_not_installed_is_not_tried(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "versions", lambda: {**dict.fromkeys(RUNTIMES, "1.0"), "onnxruntime": None})
    assert chosen(said) == "torch"
    assert "onnxruntime: skipped: not installed" in said


def test_runtimes_of_a_gpu_are_not_asked_for_on_a_cpu(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "RUNTIMES", ("torch", "onnxruntime-cuda", "onnxruntime-tensorrt"))
    assert chosen(said) == "torch"
    for name in choice.RUNTIMES[1:]:
        assert f"{name}: skipped: {name} only runs on a CUDA GPU" in said


def test_no_runtime_at_all_is_an_error_with_every_reason(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "RUNTIMES", ("openvino", "torch-int8"))
    with pytest.raises(UserError) as refused:
        chosen(said)
    assert refused.value.line().startswith(
        "m: no runtime reproduces the model's outputs: openvino: its outputs differ; torch-int8: the model is not"
    )

"""What a fit sets up before its first plan: the least size, one measured time, and what corrects the predictions."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from compress.errors import ExitCode, UserError
from compress.fit.cost.cost_model import StaticRanges
from compress.fit.make import bench
from compress.fit.request.case import LOSS_WORDS
from compress.stages.shared.divergence import OF_CLASSES


class Costs(SimpleNamespace):
    """Costs that remember what they were corrected with."""

    def correct(self, *pairs: tuple[float, float]) -> None:
        self.pairs, self.factor, self.extra = pairs, 2.0, 1.0


class Space(SimpleNamespace):
    """A space of plans that keeps what it was made with."""

    def __init__(self, study: Any, blocks: Any, factor: float, scales: Any, extra: float = 0.0) -> None:
        super().__init__(study=study, factor=factor, extra=extra)

    def with_static_ranges(self, ms: float, loss: float) -> Any:
        return ms, loss

    def plan_whole_model(self, bits: int) -> Any:
        return plan(f"whole in {bits}", 10.0)

    def probe(self, part: float) -> tuple[Any, float]:
        return plan(f"narrow {part}", 4.0), 0.0


@dataclass(frozen=True)
class FakePlan:
    name: str
    ms: float
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    neurons: tuple[int, ...] = ()
    ranges: str = "per-token"

    def modules(self, config: Any) -> str:
        return self.name


def plan(name: str, ms: float) -> Any:
    return FakePlan(name, ms)


def set_up(
    monkeypatch: pytest.MonkeyPatch,
    *,
    max_mb: float | None = None,
    timing: Any = None,
    static_ms: float = 7.9,
    runtime: str = "onnxruntime",
    static: Any = None,
    on_target: float | None = None,
) -> tuple[Any, Any]:
    """(the bench, what was done on the way). static_ms: of the whole model with static input ranges.  on_target: the
    same in a target file."""
    seen: dict[str, Any] = {"remembered": [], "timed": [], "notes": []}
    times = iter((8.0, 3.0, static_ms))

    def beside_parent(call: Any, rounds: int, seconds: float) -> Any:
        seen["timed"].append(call)
        return SimpleNamespace(ms=next(times), quiet=True)

    evaluator = SimpleNamespace(remember=seen["remembered"].append, beside_parent=beside_parent, parent_call=[])
    serving = SimpleNamespace(bits=(8,), device="cpu", runtime=runtime)
    costs = Costs(
        serving=serving, blocks=None, timing=timing, factor=1.5, extra=0.5, static=static, static_ms=on_target
    )
    student = SimpleNamespace(compute_kl_to_parent={"per-token": 0.5, "static": 0.75}.get)
    maker = SimpleNamespace(
        student=student, narrow=lambda *_, **__: "narrow model", model=lambda plan, serving: (plan.ranges, {})
    )
    monkeypatch.setattr(bench, "prepare", lambda model: model)
    monkeypatch.setattr(bench, "compute_least_megabytes", lambda *_: 5.0)
    monkeypatch.setattr(bench.cost_model, "of", lambda *_: costs)
    monkeypatch.setattr(bench, "Evaluator", lambda *_, **__: evaluator)
    monkeypatch.setattr(bench, "Student", lambda *_: student)
    monkeypatch.setattr(bench, "settings_for", lambda *_: {})
    monkeypatch.setattr(bench, "load_or_make_study", lambda *_, **__: ("study", "scales"))
    monkeypatch.setattr(bench, "Space", Space)
    monkeypatch.setattr(bench, "Counts", lambda *_: None)
    monkeypatch.setattr(bench, "Maker", lambda *_: maker)
    monkeypatch.setattr(bench, "quantize_to_bits", lambda model, bits, serving: (model, bits))
    monkeypatch.setattr(bench, "build_parts", lambda made, serving: made)
    case: Any = SimpleNamespace(
        wanted=SimpleNamespace(saves_bytes=True, target=None, serves_on="here"), options=SimpleNamespace(runtime=None),
        shape=None, task=None,
        console=SimpleNamespace(note=seen["notes"].append, slow_progress=None), max_length=8,
        clock=SimpleNamespace(check=lambda: None), loss_words=LOSS_WORDS[OF_CLASSES],
        bounds=SimpleNamespace(max_mb=max_mb),
        loaded=SimpleNamespace(model="model", config=None), recipe=SimpleNamespace(seed=0),
        table=SimpleNamespace(split=lambda _: [], task="classification"),
    )  # fmt: skip
    return bench.set_up(case), seen


def test_a_size_that_no_plan_reaches_is_rejected_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--max-mb") as error:
        set_up(monkeypatch, max_mb=4.9)
    assert error.value.code == ExitCode.REFUSED
    set_up(monkeypatch, max_mb=5.0)


def test_two_real_models_correct_the_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = set_up(monkeypatch)
    assert seen["timed"] == [("model", "whole in 8"), ("narrow model", f"narrow {bench.NARROW}"), "static"]
    assert made.costs.pairs == ((10.0, 8.0), (4.0, 3.0)), "predicted, measured"
    assert (made.space.factor, made.space.extra) == (2.0, 1.0), "plans are made with the correction"
    assert made.costs.timing.ms == 8.0
    assert seen["remembered"] == [made.costs.timing]
    assert "8.00 ms, measured; predicted latency = 2.000 x the sum of its parts + 1.00 ms" in seen["notes"][-1]


def test_what_was_measured_before_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = SimpleNamespace(ms=7.0, quiet=False)
    made, seen = set_up(monkeypatch, timing=timing)
    assert seen["timed"] == []
    assert seen["remembered"] == [timing]
    assert (made.space.factor, made.space.extra) == (1.5, 0.5)
    assert "7.00 ms, measured on a busy machine" in seen["notes"][-1]
    assert made.spaces == [made.space], "as when that run began"
    static = StaticRanges(6.0, 0.1)
    made, seen = set_up(monkeypatch, timing=timing, static=static)
    assert (made.static, seen["timed"]) == ((6.0, 0.1), [])


def test_static_ranges_are_planned_with_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = set_up(monkeypatch, static_ms=6.0)
    assert made.spaces == [made.space, (6.0, 0.25)], "milliseconds, and nats more than with a scale for each token"
    assert made.costs.static == StaticRanges(6.0, 0.25)
    assert seen["notes"][-1] == "with static input ranges: 6.00 ms, KL to the parent +0.2500"
    assert seen["remembered"] == [made.costs.timing]
    for made, _ in (
        set_up(monkeypatch, static_ms=bench.WORTH * 8.0 + 0.01),
        set_up(monkeypatch, static_ms=6.0, runtime="torch-int8"),
        set_up(monkeypatch, timing=SimpleNamespace(ms=7.0, quiet=True), on_target=6.9),
    ):
        assert (made.spaces, made.costs.static) == ([made.space], None)


def test_a_target_says_what_static_ranges_take_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made, seen = set_up(monkeypatch, timing=SimpleNamespace(ms=7.0, quiet=True), on_target=5.0)
    assert made.spaces == [made.space, (5.0, 0.25)], "the milliseconds are the target's, what it loses is computed here"
    assert seen["timed"] == []

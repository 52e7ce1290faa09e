"""Which records of a journal are sent together, and by which call."""

from __future__ import annotations

from typing import Any

import pytest

from compress.tracking import plan as module
from compress.tracking.batch import Memory
from compress.tracking.plan import Plan


def take(plan: Plan, *records: dict[str, Any], memory: Memory | None = None) -> list[bool]:
    memory = memory or Memory()
    return [plan.take(number, record, memory) for number, record in enumerate(records)]


def metrics(step: int) -> dict[str, Any]:
    return {"op": "metrics", "t": 1, "step": step, "values": {"loss": 1.0}}


def test_each_sort_goes_where_its_call_is() -> None:
    plan = Plan()
    model = {"op": "model", "t": 2, "metrics": {"accuracy": 0.9}}
    rest = [{"op": op} for op in ("start", "dataset", "artifact", "register", "finish")]
    assert all(take(plan, *rest, model, metrics(1)))
    assert plan.records == 7
    assert [record["op"] for record in plan.datasets] == ["dataset"]
    assert [(number, record["op"]) for number, record in plan.files] == [(2, "artifact")], "its number in the journal"
    assert [record["op"] for record in plan.registered] == ["register"]
    ((number, record, points),) = plan.models
    assert (number, record, [(p.key, p.value, p.t) for p in points]) == (5, model, [("accuracy", 0.9, 2)])
    assert [(p.key, p.step) for p in plan.batch.points] == [("loss", 1)]


def test_the_last_status_counts() -> None:
    plan = Plan()
    finish, resume = {"op": "finish"}, {"op": "resume"}
    take(plan, finish, resume)
    assert plan.status is resume


def test_a_full_plan_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDS_PER_BATCH", 2)
    plan = Plan()
    assert take(plan, *({"op": "dataset"} for _ in range(3))) == [True, True, False]
    assert (plan.records, len(plan.datasets)) == (2, 2)


def test_a_full_batch_of_points_ends_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.tracking.batch.METRICS_PER_CALL", 2)
    plan = Plan()
    assert take(plan, metrics(1), metrics(2), {"op": "dataset"}, memory=Memory()) == [True, True, False]
    assert not plan.datasets

"""Records of a journal become calls of a store: each point once, in order, within the limits of one call."""

from __future__ import annotations

from typing import Any

import pytest

from compress.tracking.batch import (
    METRICS_PER_CALL,
    RECORDS_PER_BATCH,
    TEXTS_PER_CALL,
    Batch,
    Memory,
    Point,
)
from compress.tracking.names import TAG_LIMIT


def metrics(step: int | None, t: float = 5, **values: float) -> dict[str, Any]:
    return {"op": "metrics", "step": step, "t": t, "values": values}


def test_a_resumed_run_repeats_its_steps_and_the_store_does_not() -> None:
    memory = Memory()
    assert memory.points(metrics(1, 7.9, loss=2.0)) == [Point("loss", 2.0, 7, 1)]
    assert memory.points(metrics(1, 99, loss=1.5, accuracy=0.5)) == [Point("accuracy", 0.5, 99, 1)]
    assert memory.points(metrics(0, 99, loss=3.0)) == [Point("loss", 3.0, 99, 0)], "a step 0 is a step"


def test_a_figure_without_a_step_is_new_when_its_value_is() -> None:
    memory = Memory()
    assert memory.points(metrics(None, 1, size=4.0)) == [Point("size", 4.0, 1, 0)]
    assert memory.points(metrics(None, 2, size=4.0)) == []
    assert memory.points(metrics(None, 3, size=5.0)) == [Point("size", 5.0, 3, 0)]
    assert memory.points(metrics(None, 4, size=4.0)) == [Point("size", 4.0, 4, 0)], "and back"
    assert memory.points(metrics(0, 5, size=4.0)) == [Point("size", 4.0, 5, 0)], "a curve is told apart from a figure"


def test_a_models_figure_is_the_point_that_its_run_has() -> None:
    memory = Memory()
    memory.points(metrics(None, 1, accuracy=0.5))
    assert memory.final_points({"accuracy": 0.5, "size": 1.0}, 9) == [
        Point("accuracy", 0.5, 1, 0),
        Point("size", 1.0, 9, 0),
    ]
    assert memory.points(metrics(None, 10, size=1.0)) == []
    assert memory.final_points({}, 9) == []


def test_a_parameter_that_changes_becomes_a_tag_and_the_first_value_stays() -> None:
    memory = Memory()
    assert memory.texts({"lr": "1", "seed": "0"}) == ({"lr": "1", "seed": "0"}, {})
    assert memory.texts({"lr": "2", "seed": "0"}) == ({"seed": "0"}, {"changed/lr": "2"})
    assert memory.texts({"lr": "1"}) == ({"lr": "1"}, {})


def test_records_of_all_sorts_travel_together_and_the_last_word_wins() -> None:
    batch, memory = Batch(), Memory()
    records = [
        metrics(1, loss=1.0),
        {"op": "params", "values": {"lr": "1"}},
        {"op": "params", "values": {"lr": "2"}},
        {"op": "tags", "values": {"a": "1", "b": "1"}},
        {"op": "tags", "values": {"a": "2"}},
        {"op": "note", "text": "x" * (2 * TAG_LIMIT)},
    ]
    assert all(batch.take(record, memory) for record in records)
    assert batch.records == len(records)
    assert batch.params == {"lr": "1"}
    note = batch.tags.pop("mlflow.note.content")
    assert len(note) <= TAG_LIMIT
    assert batch.tags == {"a": "2", "b": "1", "changed/lr": "2"}


@pytest.mark.parametrize("op", ["artifact", "end", ""])
def test_a_record_of_another_sort_is_left_for_later(op: str) -> None:
    batch = Batch()
    assert not batch.take({"op": op, "values": {"a": 1}}, Memory())
    assert batch == Batch()


def test_a_full_batch_takes_nothing_and_remembers_nothing() -> None:
    batch, memory = Batch(), Memory()
    for step in range(RECORDS_PER_BATCH):
        assert batch.take(metrics(step), memory)
    assert batch.is_full
    assert not batch.take(metrics(1, loss=1.0), memory)
    assert memory.points(metrics(1, loss=1.0)), "else the point would be lost"
    wide = Batch()
    assert wide.take(metrics(0, **{f"m{i}": 0.0 for i in range(3 * METRICS_PER_CALL)}), Memory())
    assert wide.is_full


@pytest.mark.parametrize(
    ("points", "params", "tags"), [(0, 0, 0), (1, 0, 0), (800, 100, 100), (801, 1, 0), (0, 201, 0), (3, 0, 500)]
)
def test_calls_hold_everything_once_within_the_limits(points: int, params: int, tags: int) -> None:
    whole = Batch(
        points=[Point(f"m{i}", float(i), 0, i) for i in range(points)],
        params={f"p{i}": str(i) for i in range(params)},
        tags={f"t{i}": str(i) for i in range(tags)},
    )
    calls = list(whole.calls())
    for call in calls:
        assert call.points or call.params or call.tags
        assert len(call.points) <= METRICS_PER_CALL
        assert max(len(call.params), len(call.tags)) <= TEXTS_PER_CALL
        assert len(call.points) + len(call.params) + len(call.tags) <= 1000
    for parts in (calls, list(whole.singles())):
        assert [point for part in parts for point in part.points] == whole.points
        assert [item for part in parts for item in part.params.items()] == list(whole.params.items())
        assert [item for part in parts for item in part.tags.items()] == list(whole.tags.items())
    assert len(list(whole.singles())) == points + params + tags

"""From records of a journal to the batches a store takes: each point once, within the limits of one call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from compress.tracking.names import TAG_LIMIT, truncate_text

# MLflow takes 1000 things a call, at most 100 of them parameters and 100 tags.
METRICS_PER_CALL = 800
TEXTS_PER_CALL = 100
RECORDS_PER_BATCH = 800


@dataclass(frozen=True)
class Point:
    key: str
    value: float
    t: int  # ms
    step: int


@dataclass
class Memory:
    """What the journal said so far: a resumed run repeats the steps behind its checkpoint, the store must not."""

    steps: dict[str, set[int]] = field(default_factory=dict)
    final: dict[str, Point] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)

    def points(self, record: dict[str, Any]) -> list[Point]:
        """The points of a metrics record that are new. The first value of a (key, step) stays; a figure without a
        step is new when its value is."""
        step, t = record["step"], int(record["t"])
        return [p for k, v in record["values"].items() if (p := self._point(k, v, t, step)) is not None]

    def _point(self, key: str, value: float, t: int, step: int | None) -> Point | None:
        if step is None:
            point = Point(key, value, t, 0)
            if key in self.final and self.final[key].value == value:
                return None
            self.final[key] = point
            return point
        known = self.steps.setdefault(key, set())
        if step in known:
            return None
        known.add(step)
        return Point(key, value, t, step)

    def final_points(self, values: dict[str, float], t: int) -> list[Point]:
        """Figures without a step for a model. One that the run has already keeps its time, so it stays one point."""
        points = []
        for key, value in values.items():
            point = self.final.get(key)
            if point is None or point.value != value:
                point = self.final[key] = Point(key, value, t, 0)
            points.append(point)
        return points

    def texts(self, values: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """(new parameters, tags): a store never changes a parameter, so another value becomes a tag."""
        new: dict[str, str] = {}
        changed: dict[str, str] = {}
        for key, value in values.items():
            if self.params.setdefault(key, value) == value:
                new[key] = value
            else:
                changed[f"changed/{key}"] = value
        return new, changed


@dataclass
class Batch:
    """Records that can travel together, in order, and what they come to."""

    records: int = 0
    points: list[Point] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.records >= RECORDS_PER_BATCH or len(self.points) >= METRICS_PER_CALL

    def take(self, record: dict[str, Any], memory: Memory) -> bool:
        """False, and nothing taken, when the record is of another sort or the batch is full."""
        if self.is_full:
            return False
        op = record["op"]
        if op == "metrics":
            self.points += memory.points(record)
        elif op == "params":
            new, changed = memory.texts(record["values"])
            self.params.update(new)
            self.tags.update(changed)
        elif op == "tags":
            self.tags.update(record["values"])
        elif op == "note":
            self.tags["mlflow.note.content"] = truncate_text(record["text"], TAG_LIMIT)
        else:
            return False
        self.records += 1
        return True

    def calls(self) -> Iterator[Batch]:
        """The same content in pieces that one call takes."""
        params, tags = list(self.params.items()), list(self.tags.items())
        count = max(
            _pieces(len(self.points), METRICS_PER_CALL),
            _pieces(len(params), TEXTS_PER_CALL),
            _pieces(len(tags), TEXTS_PER_CALL),
        )
        for i in range(count):
            yield Batch(
                points=self.points[i * METRICS_PER_CALL : (i + 1) * METRICS_PER_CALL],
                params=dict(params[i * TEXTS_PER_CALL : (i + 1) * TEXTS_PER_CALL]),
                tags=dict(tags[i * TEXTS_PER_CALL : (i + 1) * TEXTS_PER_CALL]),
            )

    def singles(self) -> Iterator[Batch]:
        """One thing each, for finding the one that the store refuses."""
        for point in self.points:
            yield Batch(points=[point])
        for key, value in self.params.items():
            yield Batch(params={key: value})
        for key, value in self.tags.items():
            yield Batch(tags={key: value})


def _pieces(count: int, size: int) -> int:
    return -(-count // size)

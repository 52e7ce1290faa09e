"""Records of a journal that are sent together."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from compress.tracking.batch import RECORDS_PER_BATCH, Batch, Memory, Point
from compress.tracking.records import Record


@dataclass
class Plan:
    """Records that are sent together: one call for their figures, parameters and tags, one for their data sets, one for
    the run's status; a few for each model. Their files go apart."""

    records: int = 0
    batch: Batch = field(default_factory=Batch)
    datasets: list[Record] = field(default_factory=list)
    models: deque[tuple[int, Record, list[Point]]] = field(default_factory=deque)
    registered: deque[Record] = field(default_factory=deque)
    waiting: list[Record] = field(default_factory=list)  # of `registered`: for the files of the models above
    files: list[tuple[int, Record]] = field(default_factory=list)
    status: Record | None = None

    def take(self, number: int, record: Record, memory: Memory) -> bool:
        """False, and nothing taken, when it is full. number: of the record in the journal."""
        op = record["op"]
        if self.records >= RECORDS_PER_BATCH or self.batch.is_full:
            return False
        if op == "dataset":
            self.datasets.append(record)
        elif op == "model":
            self.models.append((number, record, memory.final_points(record["metrics"], int(record["t"]))))
        elif op == "register":
            self.registered.append(record)
        elif op == "artifact":
            self.files.append((number, record))
        elif op in ("resume", "finish"):
            self.status = record
        elif op != "start":  # which makes the run
            self.batch.take(record, memory)
        self.records += 1
        return True

"""What a training step costs on the simulated device: prints {case: {waits, log_waits, kernels, any_order, ..}}, and
what the log tells of it.

Arguments: `CASES@SERIES`: the cases, "all" or names with commas between them, at `DROPOUTxMICRO_BATCHES`, such as
all@0.1x2, or with the layers of teacher and student, such as task@0x1@12+6; without: four and two. bf16. Counted is a
step that writes no line into the log, and, for its waits, one that does.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import device  # first: it loads the shim before torch
import numpy as np
import torch
from step_cases import CASES, SMALL, Case, build_batch

from compress.contracts import Batch, TrainingPlan
from compress.encoder.infer.prepare import prepare
from compress.training.context import NullLog, TrainingContext
from compress.training.loop import train

# What torch has no deterministic implementation of on a GPU (`torch.use_deterministic_algorithms`) and an encoder might
# launch; `--deterministic` would end with an error.
RANDOM_ORDER = {
    "aten::bincount", "aten::cumsum", "aten::cumsum_", "aten::histc", "aten::kthvalue", "aten::median.dim",
    "aten::nll_loss2d_forward", "aten::put_", "aten::_ctc_loss", "aten::_embedding_bag",
}  # fmt: skip
ROWS = 12
LOGGED, STEADY = 2, 1  # of the steps that are counted from 0
STEPS = LOGGED + 2


class Source:
    """Rows of different lengths, in micro-batches."""

    fingerprint = "simulated"

    def __init__(self, label: Callable[[Batch], Batch], parts: int) -> None:
        self._label, self._parts = label, parts

    def steps(self, epoch: int) -> int:
        return 100

    def step(self, epoch: int, index: int) -> list[Batch]:
        return [self._label(self._batch(part)) for part in range(self._parts)]

    def _batch(self, part: int) -> Batch:
        return build_batch(3 + np.arange(ROWS) // 2 + part, SMALL["vocabulary"])


class Steps:
    """Progress that keeps what each step recorded."""

    def __init__(self, record: device.Record) -> None:
        self._record = record
        self.done: list[device.Record] = []

    def update(self, *_: Any, **__: Any) -> None:
        seen = device.Record()
        seen.__dict__.update({name: counter.copy() for name, counter in vars(self._record).items()})
        self.done.append(seen)
        self._record.clear()


class Lines(NullLog):
    """Keeps the figures that were logged last, by name."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        self.last |= values


@dataclass(frozen=True)
class Series:
    """dropout: in both models.  parts: micro-batches of a step.  teacher, student: layers."""

    dropout: float
    parts: int
    teacher: int = 4
    student: int = 2

    @classmethod
    def parse(cls, word: str) -> Series:
        """0.1x2, or 0.1x2@12+6."""
        step, _, depths = word.partition("@")
        dropout, parts = step.split("x")
        return cls(float(dropout), int(parts), *map(int, filter(None, depths.split("+"))))


def count(case: Case, series: Series, record: device.Record) -> dict[str, Any]:
    """Figures of a steady step."""
    parts = series.parts
    layers = (series.teacher, series.student)
    teacher, student = (case.build_model(SMALL, depth, series.dropout).initialize(depth) for depth in layers)
    module = case.build_module(teacher, student, prepare(teacher.to("cuda"), "bf16"))
    source, progress, log = Source(case.label, parts), Steps(record), Lines()
    plan = TrainingPlan(
        steps=STEPS, batch_rows=ROWS * parts, learning_rate=1e-3, log_every=LOGGED + 1, checkpoint_every=1000
    )
    counted = mock.patch("compress.training.efficiency.COUNTED", STEPS - 1)
    with tempfile.TemporaryDirectory() as folder, counted:
        stop: Any = SimpleNamespace(requested=False)
        context = TrainingContext(
            folder=Path(folder),
            log=log,
            progress=cast(Any, progress),
            stop=stop,
            device=torch.device("cuda", 0),
            precision="bf16",
        )
        result = train(module, source, plan, context)
    assert result.skipped_steps == 0
    steady, logged = progress.done[STEADY], progress.done[LOGGED]
    return {
        **steady.totals(),
        "any_order": sorted(RANDOM_ORDER & steady.kernels.keys()),
        "log_waits": logged.totals()["waits"],
        "told_waits": log.last["train/waits_per_step"],
        "mfu_pct": log.last.get("train/mfu_pct"),
        "where": [f"{times} x {what}: {line}" for (what, line), times in steady.waits.most_common()],
    }


if __name__ == "__main__":
    found = {}
    with device.simulate() as recorded:
        for word in sys.argv[1:]:
            names, _, series = word.partition("@")
            for name in CASES if names == "all" else names.split(","):
                found[f"{name}, {series}"] = count(CASES[name], Series.parse(series), recorded)
    print(json.dumps(found))

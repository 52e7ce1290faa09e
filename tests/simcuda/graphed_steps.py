"""Trainings whose steps are CUDA graphs, on the simulated device: prints {case: {replays, waits, differs, ..}}.

Each is made twice, with graphs and with captures that fail, and compared.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import device  # first: it loads the shim before torch
import graphs
import numpy as np
import torch
from step_cases import CASES, SMALL, Case, build_batch
from training_steps import Steps

from compress.contracts import Batch, TrainingPlan
from compress.encoder.infer.graphs import WARM_UPS
from compress.encoder.infer.prepare import prepare
from compress.training.context import NullLog, TrainingContext
from compress.training.fixed_sizes import choose_size
from compress.training.loop import train

STEPS = 9
LENGTHS = {"equal": [6] * 8, "mixed": [3, 3, 4, 5, 6, 7, 9, 11]}
MIXED_STEPS, LONGEST = 18, 24


class MixedLengths:
    """Rows of log-normal lengths, other ones in each step, of data whose longest row is known."""

    fingerprint = "simulated"
    longest, made = LONGEST, MIXED_STEPS

    def __init__(self, case: Case) -> None:
        self._case = case

    def steps(self, epoch: int) -> int:
        return 100

    def step(self, epoch: int, index: int) -> list[Batch]:
        return [self._case.label(build_batch(self._draw_lengths(index), SMALL["vocabulary"]))]

    def count_repeated(self) -> int:
        """Steps whose padded size came often enough before to be captured."""
        sizes = [choose_size(int(self._draw_lengths(step).sum()), 12, LONGEST) for step in range(MIXED_STEPS)]
        return sum(sizes[:step].count(size) >= WARM_UPS for step, size in enumerate(sizes))

    def _draw_lengths(self, index: int) -> np.ndarray:
        drawn = np.exp(np.random.default_rng(index).normal(2.1, 0.3, 12)).round().astype(int)
        return np.sort(drawn.clip(3, LONGEST))


class Source:
    """Rows of the same lengths in every step, or of other ones in each, whose ids and labels differ."""

    fingerprint = "simulated"
    made = STEPS

    def __init__(self, case: Case, lengths: Sequence[int], *, varies: bool, parts: int = 1) -> None:
        self._case, self._lengths, self._varies, self._parts = case, np.array(lengths), varies, parts

    def steps(self, epoch: int) -> int:
        return 100

    def step(self, epoch: int, index: int) -> list[Batch]:
        lengths = self._lengths + (index if self._varies else 0)
        made = build_batch(lengths, SMALL["vocabulary"])
        random = torch.Generator().manual_seed(index)
        ids = torch.randint(5, SMALL["vocabulary"], made.input_ids.shape, generator=random)
        batch = self._case.label(replace(made, input_ids=ids))
        if batch.labels is not None and batch.labels.dtype == torch.int64 and batch.labels.dim() == 1:
            batch = replace(batch, labels=batch.labels[torch.randperm(len(batch.labels), generator=random)])
        return [batch] * self._parts


def run(
    case: Case, source: Source | MixedLengths, record: device.Record, **plan: Any
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """(the student's weights at the end, figures of the step before the last)."""
    teacher, student = (case.build_model(SMALL, depth, 0.1).initialize(depth) for depth in (4, 2))
    module = case.build_module(teacher, student, prepare(teacher.to("cuda"), "bf16"))
    progress, said = Steps(record), list[str]()
    stop: Any = SimpleNamespace(requested=False)
    rules = {
        "steps": source.made,
        "learning_rate": 1e-3,
        "log_every": 100,
        "checkpoint_every": 100,
        "cuda_graphs": True,
    }
    with tempfile.TemporaryDirectory() as folder, mock.patch("compress.training.graphed._log") as log:
        context = TrainingContext(
            folder=Path(folder), log=NullLog(), progress=cast(Any, progress), stop=stop, say=said.append,
            device=torch.device("cuda", 0), precision="bf16",
        )  # fmt: skip
        train(module, source, TrainingPlan(**{**rules, **plan}), context)
    steady = progress.done[source.made - 2]
    weights = [x.detach().cpu() for x in student.parameters()]
    warnings = [str(call.args[0] % call.args[1:]) for call in log.warning.call_args_list]
    figures = {**steady.totals(), "where": [str(key) for key in steady.waits], "said": said, "warnings": warnings}
    return weights, figures


def compare(case: Case, source: Source | MixedLengths, record: device.Record, **plan: Any) -> dict[str, Any]:
    """Figures with graphs, and how much the weights differ from those without."""
    with mock.patch.object(graphs.Graph, "replay", autospec=True, side_effect=graphs.Graph.replay) as replay:
        weights, found = run(case, source, record, **plan)
        number = replay.call_count
    broken = mock.patch.object(torch.cuda, "graph", side_effect=RuntimeError("operation not permitted"))
    with broken:
        plain, others = run(case, source, record, **plan)
    differs = max(float((one - other).abs().max()) for one, other in zip(weights, plain, strict=True))
    repeated = source.count_repeated() if isinstance(source, MixedLengths) else None
    return {**found, "replays": number, "repeated": repeated, "differs": differs, "fallback": others["warnings"]}


if __name__ == "__main__":
    made: dict[str, Any] = {}
    with device.simulate() as recorded:
        for name in sys.argv[1:]:
            case, lengths, varies, parts, *asked = name.split(",")
            if lengths == "log-normal":
                source = MixedLengths(CASES[case])
            else:
                source = Source(CASES[case], LENGTHS[lengths], varies=varies == "varying", parts=int(parts))
            patience = mock.patch("compress.training.graphed.PATIENCE", STEPS // 2)
            with patience, mock.patch("compress.training.time_limit.MAX_ROUNDS", 2):
                plan = {"auto": {"cuda_graphs": "auto"}, "timed": {"cuda_graphs": "auto", "minutes": 600}}
                made[name] = compare(CASES[case], source, recorded, **(plan[asked[0]] if asked else {}))
    print(json.dumps(made))

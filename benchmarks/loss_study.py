"""CPU seconds of each part of the loss study that `compress fit` begins with, and what the study found.

    python benchmarks/loss_study.py FOLDER --data DATA --output FILE [--tokens 32768] [--rows 192] [--against FILE]

--tokens: of the training rows that are studied; --rows: validation rows that answers are compared on. Fewer of both
take less time and change the figures. --against: the file of another version's study, whose figures are compared. What
blocks cost on this machine is measured first, and is not counted; a study that is kept is not read.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compress.cli.options import resolve_device
from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.fit.cost import cost_model
from compress.fit.loss import study
from compress.fit.make.build import Maker
from compress.fit.plan.plans import Space
from compress.fit.request.bounds import Bounds
from compress.fit.request.case import Case
from compress.fit.request.clock import Clock
from compress.fit.request.options import FitOptions
from compress.stages.prune_width.importance.obs import Importance
from compress.storage.signals import StopFlag
from evaluation.cost.device import describe

PARTS: list[tuple[Any, str, str]] = [
    (Importance, "__call__", "importance of heads and neurons"),
    (study, "curves", "fewer heads and neurons"),
    (study.Student, "_drops", "layers left out"),
    (study.Student, "_matrices", "matrices in few bits"),
    (study.Student, "_table", "word table in few bits"),
    (study.Student, "_rank", "factorized embeddings"),
    (study.Student, "_vocabularies", "smaller vocabularies"),
    (study.Student, "_joins", "layers that share"),
    (Maker, "scales", "probes of cut models"),
]


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    study.TOKENS, study.COMPARED = asked.tokens, asked.rows
    study.ROWS = (min(study.ROWS[0], asked.tokens // 64), study.ROWS[1])
    seconds: dict[str, float] = defaultdict(float)
    for owner, name, part in PARTS:
        setattr(owner, name, timed(getattr(owner, name), part, seconds))
    data = Override("data.source", asked.data, "--data")
    options = RunOptions(device=resolve_device("cpu", 1), threads=1, runtime="onnxruntime", overrides=(data,))
    with StopFlag() as stop:
        case = Case.of(FitOptions(str(asked.folder), Bounds(max_mb=1e6)), options, Console(), Clock(stop, None))
        costs = cost_model.of(case.loaded, options.runtime, case.shape, None, case.console)
        begun = time.process_time()
        check = case.clock.check
        student = study.Student(
            case.loaded, case.task, case.table, costs.serving, case.max_length, case.recipe.seed, check, print
        )
        found = student.study(joins=True)
        scales = Maker(student, Space(found, costs.blocks), check).scales()
        seconds["all of it"] = time.process_time() - begun
    print(" · ".join(f"{name} {value}" for name, value in describe("cpu").items()))
    for part, taken in seconds.items():
        print(f"| {part} | {taken:.1f} |")
    figures = study.as_json(found) | {"scales": [*scales.shape.sums, *scales.shape.losses, scales.drops]}
    figures["neurons"] = [curve.tolist() for curve in found.neurons]
    asked.output.write_text(json.dumps({"seconds": seconds, "figures": figures}))
    if asked.against is not None:
        compare(json.loads(asked.against.read_text()), json.loads(asked.output.read_text()))


def timed(call: Callable[..., Any], part: str, seconds: dict[str, float]) -> Callable[..., Any]:
    """The same, which adds the CPU seconds it takes to those of a part."""

    @functools.wraps(call)
    def run(*given: Any, **named: Any) -> Any:
        begun = time.process_time()
        try:
            return call(*given, **named)
        finally:
            seconds[part] += time.process_time() - begun

    return run


def compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Print how many times faster, and by how much figures of each kind differ at most, relative to the largest."""
    for part, taken in before["seconds"].items():
        print(f"{part}: {taken:.1f} s before, {taken / max(1e-9, after['seconds'][part]):.2f} times")
    for name, old in before["figures"].items():
        one, other = (np.array(list(numbers(x))) for x in (old, after["figures"][name]))
        if one.shape != other.shape:
            print(f"{name}: {len(one)} figures, {len(other)} now")
        elif len(one):
            apart = np.abs(one - other)[np.isfinite(one)].max(initial=0.0)
            print(f"{name}: {apart / max(1e-30, np.abs(one[np.isfinite(one)]).max(initial=0.0)):.1e} apart")


def numbers(given: Any) -> list[float]:
    """All that there are, in order."""
    if isinstance(given, dict):
        given = list(given.values())
    if isinstance(given, list):
        return [x for part in given for x in numbers(part)]
    return [float(given)] if isinstance(given, int | float) else []


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=study.TOKENS)
    parser.add_argument("--rows", type=int, default=study.COMPARED)
    parser.add_argument("--against", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""What a plan for 128 tokens loses on real texts against a plan for their lengths, from the cost model and measured.

    python benchmarks/text_lengths.py FOLDER --data DATA --work DIR [--parts 0.75 0.5 0.35] [--length 128] [--build]

For each share of the full int8 model's milliseconds at --length tokens, the planner chooses a plan (A). Its
milliseconds on the texts of the data follow from the cost table. A plan for the texts within the same milliseconds (B)
loses no more; the fastest plan for the texts that loses no more than A (C) takes no longer. --build makes A, B and C,
times each beside the parent's floats on the texts, and scores it on validation rows: that also tells how far
predictions are off.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import torch

from compress.cli.options import resolve_device
from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.fit.cost import text_costs
from compress.fit.make.bench import Bench, set_up
from compress.fit.make.build import DataNote
from compress.fit.plan.planner import Choice, Planner, Problem
from compress.fit.plan.plans import Space
from compress.fit.request.bounds import Bounds
from compress.fit.request.case import Case
from compress.fit.request.clock import Clock
from compress.fit.request.options import FitOptions
from compress.storage.signals import StopFlag
from evaluation.cost.device import describe

STEPS = 12
"""Halvings of the range of milliseconds, for the fastest plan that loses no more."""


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    data = Override("data.source", asked.data, "--data")
    options = RunOptions(device=resolve_device("cpu", 1), threads=1, runtime="onnxruntime", overrides=(data,))
    wanted = FitOptions(str(asked.folder), Bounds(max_mb=1e6))
    with StopFlag() as stop:
        case = Case.of(wanted, options, Console(), Clock(stop, None))
        bench = set_up(case)
        assert case.texts is not None
        fixed = fixed_space(case, bench, asked.length)
        print(" · ".join(f"{name} {value}" for name, value in describe("cpu").items()))
        print(f"{case.texts.sample.shape}: {case.texts.describe()} tokens")
        problem, theirs = bench.space.problem(), fixed.problem()
        whole = fixed.plan_whole_model(bench.serving.bits[0]).ms, bench.whole.ms
        print(f"the full model in int8: {whole[0]:.2f} ms for {asked.length} tokens, {whole[1]:.2f} ms for a text\n")
        print(f"| plan | ms, {asked.length} tokens | ms, a text | loss, {case.loss_words.unit} | MB | measured |")
        print("|---|--:|--:|--:|--:|---|")
        for part in asked.parts:
            for name, choice in choices(theirs, problem, part * whole[0]):
                cost = theirs.of(choice.layers, choice.embedding, choice.runs)
                real = problem.of(choice.layers, choice.embedding, choice.runs)
                measured = build(bench, real, asked.work / f"{name}-{part:g}", asked.build)
                print(
                    f"| {name}, {part:g} of int8 | {cost.ms:.2f} | {real.ms:.2f} | {real.loss:.3f} | {real.mb:.2f} | "
                    f"{measured} |",
                    flush=True,
                )


def fixed_space(case: Case, bench: Bench, length: int) -> Space:
    """The same plans with what they cost at one length, uncorrected: their shares of the whole are what is compared."""
    serving = dataclasses.replace(bench.serving, texts=None, length=length)
    blocks, _ = text_costs.table(case.loaded.config, case.loaded.heads, serving, case.console)
    return Space(bench.space.study, blocks, 1.0, bench.space.scales)


def choices(fixed: Problem, texts: Problem, ms: float) -> list[tuple[str, Choice]]:
    """A: the best plan within so many milliseconds at the fixed length.  B: the best for the texts that takes no longer
    than A takes for them.  C: the fastest for the texts that loses no more than A."""
    first = Planner(fixed, ms).best(1)[0]
    a = texts.of(first.layers, first.embedding, first.runs)
    b = Planner(texts, a.ms).best(1)[0]
    low, high, c = texts.lower_bounds[0], a.ms, b
    for _ in range(STEPS):
        middle = (low + high) / 2
        found = Planner(texts, middle).best(1)
        if found and found[0].loss <= a.loss:
            high, c = middle, found[0]
        else:
            low = middle
    return [("A, for the fixed length", a), ("B, for the texts", b), ("C, for the texts, fastest", c)]


def build(bench: Bench, choice: Choice, folder: Path, wanted: bool) -> str:
    """Made and measured: milliseconds over predicted ones, and what it loses; empty where it is not wanted."""
    if not wanted:
        return ""
    plan, begun = bench.space.plan(choice), time.monotonic()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        bench.maker.write(plan, bench.serving, folder, DataNote(name="text lengths", fingerprint="0"))
    found = bench.evaluator.evaluate(folder.name, plan, folder, begun)
    quiet = "" if found.timing.quiet else " (busy)"
    ms = found.timing.ms
    return (
        f"{ms:.2f} ms{quiet}, {ms / plan.ms:.2f} of predicted; {found.timing.speedup:.2f}x the float parent; "
        f"{found.drop:.2f} [{found.drop_low:.2f}, {found.drop_high:.2f}] points lost; KL {found.apart:.3f}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--parts", type=float, nargs="+", default=[0.75, 0.5, 0.35])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--build", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()

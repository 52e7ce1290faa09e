"""Speed ratios on a busy machine: against one that is known by construction, and of two encoders.

    python benchmarks/busy_machine.py --load 0 1 2 --trials 20 --threads 1 2

Load: processes that compute without a pause beside the measurement. The known pair does the same work 1,000 and 100
times; the encoders are 12 x 384 and 2 x 192 on 64 tokens. For each: how many trials gave a ratio, its range, the mean
and the largest error against the reference (10, or the median without load), and how many of the intervals hold it.
The plain ratio is that of the median wall times.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import mean, median

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.modules.model import Model
from compress.predict.predictor import build_fixed_batch
from evaluation.cost.cpu import cpu_flags, cpu_name
from evaluation.cost.latency import Ratio, compare_latencies, measure_interleaved

LOAD = "while True: sum(range(10_000))"
KNOWN = 10.0


def work(times: int, x: Tensor) -> Callable[[], None]:
    def call() -> None:
        for _ in range(times):
            torch.tanh(x @ x)

    return call


def encoder(layers: int, hidden: int) -> Callable[[], object]:
    config = EncoderConfig.uniform(
        vocabulary=1000, hidden=hidden, layers=layers, heads=hidden // 32, feed_forward=4 * hidden
    )
    model, batch = Model(config, {}).eval(), build_fixed_batch(config, 1, 64)
    return lambda: model(batch, Needs())


def trials(calls: list[Callable[[], object]], count: int) -> tuple[list[Ratio | None], list[float]]:
    ratios, plain = [], []
    with torch.inference_mode():
        for _ in range(count):
            slow, fast = measure_interleaved(calls, device="cpu", warmup=2, repeats=20, seconds=1.0)
            ratios.append(compare_latencies(slow, fast))
            walls = [[_seconds(call) for call in calls] for _ in range(20)]
            plain.append(float(np.divide(*np.median(walls, axis=0))))
    return ratios, plain


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    asked = parser.parse_args()
    print(f"{cpu_name()}: {' '.join(cpu_flags())}")
    print("| pair | threads | load | ratios | range | mean error | largest | held | plain range |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for threads in asked.threads:
        torch.set_num_threads(threads)
        x = torch.randn(48, 48)
        pairs = {"known": [work(1000, x), work(100, x)], "encoders": [encoder(12, 384), encoder(2, 192)]}
        reference = {"known": KNOWN}
        for load in asked.load:
            others = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(load)]
            try:
                for name, calls in pairs.items():
                    ratios, plain = trials(calls, asked.trials)
                    there = [ratio for ratio in ratios if ratio is not None]
                    reference.setdefault(name, median(r.value for r in there))
                    _print(name, threads, load, asked.trials, there, reference[name], plain)
            finally:
                for other in others:
                    other.kill()
                    other.wait()


def _print(
    name: str, threads: int, load: int, count: int, there: list[Ratio], reference: float, plain: list[float]
) -> None:
    errors = [abs(ratio.value / reference - 1) for ratio in there] or [float("nan")]
    span = f"{min(r.value for r in there):.1f} to {max(r.value for r in there):.1f}" if there else "none"
    held = sum(ratio.low <= reference <= ratio.high for ratio in there)
    print(
        f"| {name} | {threads} | {load} | {len(there)} of {count} | {span} | {100 * mean(errors):.1f} % | "
        f"{100 * max(errors):.1f} % | {held} of {len(there)} | {min(plain):.1f} to {max(plain):.1f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()

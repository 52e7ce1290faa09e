"""Scoring layers by CKA: one pass in minibatches and in feature space, against whole Gram matrices.

    python -m benchmarks.cka [--tokens 50000] [--layers 13] [--width 768] [--threads 2] [--gram 4000]

Prints seconds and the most memory that each way took: above what the process held before, and in all. Batches are made
as they are read, as a model would give them. Whole Gram matrices are timed on `--gram` tokens and extrapolated by the
square.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import torch

from evaluation.representation.cka import LayerCKA, LinearCKA
from evaluation.representation.hsic import hsic, linear_gram

BATCH = 4096  # tokens that a model gives at once


def outputs(tokens: int, layers: int, width: int) -> Iterator[list[torch.Tensor]]:
    """Batches of layer outputs, each layer a little further from the first."""
    generator = torch.Generator().manual_seed(0)
    for start in range(0, tokens, BATCH):
        x = torch.randn(min(BATCH, tokens - start), width, generator=generator)
        batch = [x]
        for _ in range(layers - 1):
            batch.append(batch[-1] + 0.3 * torch.randn(x.shape, generator=generator))
        yield batch


def measured(work: Callable[[], object]) -> tuple[float, float, float, float]:
    """(wall seconds, CPU seconds, GB above the start at the peak, GB of the process at the peak)."""
    process = psutil.Process()
    begin, peak, done = process.memory_info().rss, 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    done.set()
    watcher.join()
    peak = max(peak, begin)
    return (*seconds, (peak - begin) / 1e9, peak / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("tokens", 50_000), ("layers", 13), ("width", 768), ("threads", 2), ("gram", 4_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    shape = asked.layers, asked.width
    for _ in outputs(BATCH, *shape):  # what torch sets up once is not counted
        pass

    def drawing() -> None:
        for _ in outputs(asked.tokens, *shape):
            pass

    def minibatches() -> None:
        cka = LayerCKA()
        for batch in outputs(asked.tokens, *shape):
            cka.update(batch)
        cka.interval()

    def exact() -> None:
        pair = LinearCKA()
        for batch in outputs(asked.tokens, *shape):
            pair.update(batch[0], batch[1])
        pair.value()

    def grams() -> None:
        whole = [torch.cat(parts) for parts in zip(*outputs(asked.gram, *shape), strict=True)]
        made = [linear_gram(layer) for layer in whole]
        for one in made:
            for other in made:
                hsic(one, other)

    told = f"{asked.tokens:,} tokens x {asked.layers} layers x {asked.width}, {asked.threads} threads"
    print(told)
    rows = (
        ("making the batches alone", drawing),
        ("all pairs in minibatches of 256, with intervals", minibatches),
        ("one pair exactly, in feature space", exact),
        (f"all pairs, whole Gram matrices, {asked.gram:,} tokens", grams),
    )
    found = {}
    for name, work in rows:
        found[name] = wall, cpu, memory, whole = measured(work)
        print(f"{name:52} {wall:8.1f} s   {cpu:8.1f} s of CPU   {memory:6.2f} GB   {whole:6.2f} GB in all")
    factor = (asked.tokens / asked.gram) ** 2
    wall, cpu, *_ = found[rows[-1][0]]
    gram = asked.layers * asked.tokens**2 * 8 / 1e9
    name = f"the same of {asked.tokens:,} tokens, extrapolated"
    times = f"{wall * factor:8.0f} s   {cpu * factor:8.0f} s of CPU"
    print(f"{name:52} {times}   {gram:6.0f} GB for the matrices alone")


if __name__ == "__main__":
    main()

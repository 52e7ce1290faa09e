"""Sequences through a float and a quantized folder in every runtime, beside Hugging Face's own class, in turn.

    python benchmarks/runtimes.py FLOAT-FOLDER QUANTIZED-FOLDER --lengths 32 128 --batches 1 32 --threads 1 2

The float folder is of a stock class. A runtime that is not here, or that a folder has no file for, is left out.
Prints the speed-up over Hugging Face in eager fp32, timed in turn with all others, and milliseconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

from compress.errors import UserError
from compress.onnx.runtimes import RUNTIMES, Runtime, versions
from compress.predict.predictor import Predictor, build_fixed_batch
from evaluation.cost.cpu import cpu_flags, cpu_name
from evaluation.cost.latency import measure_interleaved
from evaluation.cost.size import MB, weights_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("float", type=Path)
    parser.add_argument("quantized", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=40)
    asked = parser.parse_args()
    print(f"{cpu_name()}: {' '.join(cpu_flags())}")
    theirs = AutoModelForSequenceClassification.from_pretrained(asked.float, attn_implementation="eager").eval()
    print("| | MB | batch | length | threads | ms | times Hugging Face |\n|---|--:|--:|--:|--:|--:|--:|")
    for threads in asked.threads:
        torch.set_num_threads(threads)
        ours = {
            f"{kind} {runtime}": predictor
            for kind, folder in (("float", asked.float), ("quantized", asked.quantized))
            for runtime in RUNTIMES
            if (predictor := opened(folder, runtime))
        }
        for batch in asked.batches:
            for length in asked.lengths:
                compare(ours, theirs, (batch, length), threads, asked.repeats)


def opened(folder: Path, runtime: Runtime) -> Predictor | None:
    """Ready to answer; None where the runtime cannot."""
    if versions()[runtime] is None:
        return None
    try:
        predictor = Predictor(folder, runtime=runtime)
        predictor.run  # noqa: B018  # opens it
    except UserError:
        return None
    return predictor


def compare(
    ours: dict[str, Predictor], theirs: torch.nn.Module, shape: tuple[int, int], threads: int, repeats: int
) -> None:
    """All on a batch of full sequences. shape: sequences, and tokens of each."""
    rows, length = shape
    batch = build_fixed_batch(next(iter(ours.values())).config, rows, length)
    ids = batch.input_ids.view(rows, length)

    def reference() -> None:
        with torch.inference_mode():
            theirs(input_ids=ids, attention_mask=torch.ones_like(ids))

    calls = [reference, *(lambda p=p: p(batch) for p in ours.values())]
    times = measure_interleaved(calls, device="cpu", repeats=repeats, seconds=4.0)
    print(f"| Hugging Face eager fp32 | | {rows} | {length} | {threads} | {times[0].p50:.2f} | 1 |")
    for (name, predictor), found in zip(ours.items(), times[1:], strict=True):
        size = sum(map(weights_bytes, predictor.files)) / MB
        where = f"{rows} | {length} | {threads}"
        print(f"| {name} | {size:.1f} | {where} | {found.p50:.2f} | {times[0].p50 / found.p50:.2f} |", flush=True)


if __name__ == "__main__":
    main()

"""One sequence through a float and a quantized folder in every runtime, beside Hugging Face's own class, in turn.

    python benchmarks/runtimes.py FLOAT-FOLDER QUANTIZED-FOLDER --lengths 32 128 --threads 1 2

Both folders come from `compress export`; the float one is of a stock class. Prints the speed-up over Hugging Face in
eager fp32, timed in turn with all others, and milliseconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

from compress.predictor import Predictor, fixed_batch
from evaluation.cost.cpu import cpu_flags, cpu_name
from evaluation.cost.latency import measure_interleaved
from evaluation.cost.size import MB, weights_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("float", type=Path)
    parser.add_argument("quantized", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=40)
    asked = parser.parse_args()
    print(f"{cpu_name()}: {' '.join(cpu_flags())}")
    theirs = AutoModelForSequenceClassification.from_pretrained(asked.float, attn_implementation="eager").eval()
    print("| | MB | length | threads | ms | times Hugging Face |\n|---|--:|--:|--:|--:|--:|")
    for threads in asked.threads:
        torch.set_num_threads(threads)
        ours = {
            f"{runtime} {folder.name}": predictor
            for folder in (asked.float, asked.quantized)
            for runtime in ("torch", "onnxruntime", "openvino")
            if (predictor := Predictor(folder, runtime=runtime))
        }
        for length in asked.lengths:
            compare(ours, theirs, length, threads, asked.repeats)


def compare(ours: dict[str, Predictor], theirs: torch.nn.Module, length: int, threads: int, repeats: int) -> None:
    """All on one sequence of `length` tokens."""
    batch = fixed_batch(next(iter(ours.values())).config, 1, length)
    ids = batch.input_ids[None]

    def reference() -> None:
        with torch.inference_mode():
            theirs(input_ids=ids, attention_mask=torch.ones_like(ids))

    calls = [reference, *(lambda p=p: p(batch) for p in ours.values())]
    times = measure_interleaved(calls, repeats=repeats, seconds=4.0)
    print(f"| Hugging Face eager fp32 | | {length} | {threads} | {times[0].p50:.2f} | 1 |")
    for (name, predictor), found in zip(ours.items(), times[1:], strict=True):
        size = sum(map(weights_bytes, predictor.files)) / MB
        print(f"| {name} | {size:.1f} | {length} | {threads} | {found.p50:.2f} | {times[0].p50 / found.p50:.2f} |")


if __name__ == "__main__":
    main()

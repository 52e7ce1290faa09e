"""Thin matrices before any recovery: methods, ways to spread the ranks and how much stays.

    python benchmarks/lowrank.py --model FOLDER --data "$COMPRESS_DATA/sst2" --ratios 0.75 0.5

Splits the layers' matrices of a fine-tuned model by the functions that `compress factorize` calls, and prints for each
way the share of numbers kept, accuracy on validation and the KL of its answers from the model's, in nats.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
import torch

from compress import registry
from compress.contracts import Needs
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.reading.sources import open_table
from compress.encoder.infer import statistics
from compress.encoder.infer.prepare import prepare
from compress.objectives.hard_labels import Objective as HardLabels
from compress.predict.predictor import Predictor
from compress.stages.factorize import allocation, conversion, sensitivity
from compress.stages.factorize.stage import METHODS

NEEDS = Needs(logits=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--ratios", type=float, nargs="+", default=[0.75, 0.5])
    p.add_argument("--methods", nargs="+", default=list(registry.parts(METHODS)), choices=registry.parts(METHODS))
    p.add_argument("--max-length", type=int, default=64)
    p.add_argument("--rows", type=int, default=2048, help="training rows that activations and gradients are read on")
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    predictor = Predictor(args.model)
    table, model = open_table(args.data), predictor.reference
    every = table.split("train")
    train_rows = every.take(np.linspace(0, len(every) - 1, min(args.rows, len(every))).astype(np.int64))
    train = predictor.encode_rows(train_rows, max_length=args.max_length)
    test = predictor.encode_rows(table.split("validation"), max_length=args.max_length)
    batches = list(evaluation_batches(test, 4096))
    inputs = statistics.inputs(model, evaluation_batches(train, 1024))
    fisher = statistics.fisher(model, HardLabels(), evaluation_batches(train, 1))
    with torch.inference_mode():
        before = [prepare(model)(batch, NEEDS).logits for batch in batches]
    print(f"{'method':10} {'ranks':10} {'kept':>7} {'accuracy':>9} {'KL':>7}", flush=True)
    for name in args.methods:
        found = conversion.factorize_matrices(model, registry.load(METHODS, name)(), inputs=inputs, fisher=fisher)
        known = conversion.candidates(model, found)
        whole = sum(one.whole for one in known.values())
        felt = sensitivity.measure_sensitivity(model, found, known, inputs, evaluation_batches(train, 512), "task")
        ways = {
            "alike": allocation.allocate_uniform,
            "by error": allocation.allocate_ranks,
            "by answers": allocation.allocate_ranks,
        }
        for ratio, label in itertools.product(args.ratios, ways):
            ranks = ways[label](felt if label == "by answers" else known, int(ratio * whole))
            made = prepare(conversion.convert(model, found, ranks, inputs).eval())
            right = kl = rows = 0.0
            for batch, old in zip(batches, before, strict=True):
                new = made(batch, NEEDS).logits
                assert new is not None
                assert old is not None
                assert batch.labels is not None
                right += float((new.argmax(1) == batch.labels).sum())
                a, b = old.log_softmax(1), new.log_softmax(1)
                kl += float((a.exp() * (a - b)).sum())
                rows += batch.rows
            kept = allocation.count_numbers(known, ranks) / whole
            print(f"{name:10} {label:10} {kept:7.1%} {right / rows:9.2%} {kl / rows:7.3f}", flush=True)


if __name__ == "__main__":
    main()

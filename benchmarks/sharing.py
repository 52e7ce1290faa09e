"""Sharing layers and factorizing embeddings of a trained model: what conversion costs, and what healing wins back.

    python benchmarks/sharing.py --teachers runs/sst2/teacher-0/model --data "$COMPRESS_DATA/sst2"
    python benchmarks/sharing.py --teachers FOLDER FOLDER FOLDER --data DATA --healed 3:16:160 2:16:128 --steps 900

The first converts in one process, nothing trained: tables by width and weighting, groups by start and by rank of the
residuals; accuracy on the validation rows and mean KL of the answers from the teacher's. The second runs, for every
GROUPS:RANK:SIZE and teacher (seed 0 for the first, and so on),

    compress share TEACHER --groups GROUPS --residual-rank RANK --embedding-size SIZE --data DATA --seed S

and ends with a table of what is left of size and accuracy. Finished runs are found again, so it can be interrupted.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from commands import evaluated, reported

from compress.contracts import Batch, LayerGroups, Needs, SharedStart
from compress.data.batches.evaluation_batches import evaluation_batches, restore_order
from compress.data.batches.task_batches import TaskBatches
from compress.data.reading.sources import open_table
from compress.data.tasks import task_of
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.sharing import build_contiguous_groups
from compress.encoder.infer.prepare import prepare
from compress.encoder.infer.statistics import fisher, inputs
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import load_model
from compress.objectives.hard_labels import Objective as HardLabels
from compress.predict.predictor import MAX_TOKENS
from compress.stages.share import factorization
from compress.stages.share.conversion import LayerStatistics, convert
from compress.stages.share.starts.activation import Start as Activation
from compress.stages.share.starts.chosen import Start as Chosen
from compress.stages.share.starts.fisher import Start as Fisher
from compress.stages.share.starts.mean import Start as Mean
from evaluation.quality.agreement import divergence

STARTS: dict[str, SharedStart] = {
    "mean": Mean(),
    "first of each group": Chosen(),
    "Fisher": Fisher(),
    "activations": Activation(),
}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--teachers", nargs="+", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--healed", nargs="*", default=[], metavar="GROUPS:RANK:SIZE", help="train these; else convert only")
    p.add_argument("--groups", type=int, nargs="+", default=[3, 2, 1])
    p.add_argument("--sizes", type=int, nargs="+", default=[128, 64])
    p.add_argument("--ranks", type=int, nargs="+", default=[0, 16])
    p.add_argument("--steps", type=int, default=900)
    p.add_argument("--output", type=Path, default=Path("runs/sharing"))
    p.add_argument("--max-length", type=int, default=64)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--set", nargs="*", default=[], help="further KEY=VALUE for what is healed")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    if args.healed:
        healed(args)
        return
    for teacher in args.teachers:
        converted(teacher, args)


# --- conversion alone -------------------------------------------------------------------------------------------


class Bench:
    """A teacher, its training text, and what it answers on the validation rows."""

    def __init__(self, folder: str, data: str, max_length: int) -> None:
        loaded, table = load_model(folder, require={"task"}), open_table(data)
        tokenizer, task = Tokenizer.from_files(loaded.tokenizer_files, where=folder), task_of(table.task)
        self.model, split = loaded.model, table.split
        self.train, self.rows = (
            task.encode(tokenizer, split(name), max_length=max_length) for name in ("train", "validation")
        )
        self.answers = self._answers(self.model)

    def batches(self, each: int = 32) -> Iterator[Batch]:
        """Training text in the order of the first epoch."""
        source = TaskBatches(self.train, each, MAX_TOKENS, 0)
        for index in range(source.steps(0)):
            yield from source.step(0, index)

    def known(self, start: SharedStart) -> LayerStatistics:
        """What a start reads."""
        if start.reads == "inputs":
            return LayerStatistics(inputs=inputs(self.model, self.batches()))
        if start.reads == "gradients":
            return LayerStatistics(fisher=fisher(self.model, HardLabels(), self.batches(1)))
        return LayerStatistics()

    def tell(self, name: str, model: Model) -> None:
        """Prints megabytes, accuracy and divergence from the teacher."""
        found = self.answers if model is self.model else self._answers(model)
        accuracy = float((found.argmax(1) == self.rows.labels).mean())
        apart = float(divergence(found, self.answers).mean())
        megabytes = 4 * sum(parameter.numel() for parameter in model.parameters()) / 1e6
        print(f"{name:62} {megabytes:7.2f} MB  {100 * accuracy:6.2f} %  KL {apart:.3f}", flush=True)

    def _answers(self, model: Model) -> np.ndarray:
        """(rows, labels) logits on validation."""
        prepared, parts = prepare(model), []
        with torch.inference_mode():
            for batch in evaluation_batches(self.rows, MAX_TOKENS):
                logits = prepared(batch, Needs(logits=True)).logits
                assert logits is not None
                parts.append((batch.row_ids.numpy(), logits.numpy()))
        return restore_order(self.rows, parts)


def converted(folder: str, args: argparse.Namespace) -> None:
    bench = Bench(folder, args.data, args.max_length)
    print(f"{folder}: {len(bench.rows):,} validation rows")
    bench.tell("teacher", bench.model)
    counts = factorization.count(bench.model.config, bench.batches())
    for size in args.sizes:
        for name, weights in (("weighted by frequency", counts), ("rows alike", None)):
            made = factorization.apply(bench.model, factorization.factorize(bench.model, weights, size=size))
            bench.tell(f"tables of width {size}, {name}", made)
    depth, apart = bench.model.config.depth, tuple(range(bench.model.config.depth))
    for name, start in STARTS.items():
        known = bench.known(start)
        for count, rank in itertools.product(args.groups, args.ranks):
            runs = build_contiguous_groups(depth, count)
            made = convert(bench.model, LayerGroups(runs, runs), start, residual_rank=rank, known=known)
            bench.tell(f"{count} groups of neighbours, {name}, residuals of rank {rank}", made)
        one = (0,) * depth
        for part, groups in (("attention", LayerGroups(one, apart)), ("feed-forward", LayerGroups(apart, one))):
            bench.tell(f"{part} alone in one group, {name}", convert(bench.model, groups, start, known=known))


# --- healed -----------------------------------------------------------------------------------------------------


def healed(args: argparse.Namespace) -> None:
    print(f"{args.steps} steps; accuracy in %, of the teacher's in brackets; mean over the teachers")
    for point in args.healed:
        groups, rank, size = point.split(":")
        rows = [report(teacher, seed, groups, rank, size, args) for seed, teacher in enumerate(args.teachers)]
        lines = [f"{row['MB']:.2f} MB ({row['share']:.1f} %)" for row in rows[:1]]
        for split in ("validation", "test"):
            shown = ", ".join(f"{row[split]:.2f} ({row[f'{split} kept']:.1f})" for row in rows)
            mean, kept = (statistics.mean(row[key] for row in rows) for key in (split, f"{split} kept"))
            lines.append(f"{split} {mean:.2f} ({kept:.1f}): {shown}")
        print(f"{groups} groups, rank {rank}, width {size}: " + "; ".join(lines), flush=True)


def report(teacher: str, seed: int, groups: str, rank: str, size: str, args: argparse.Namespace) -> dict[str, float]:
    """A point of one seed, in percent and megabytes, from its finished run or by running it."""
    folder = args.output / f"g{groups}-r{rank}-e{size}-{seed}"
    training = {"steps": args.steps, "epochs": "null", "validate_every": max(1, args.steps // 2)}
    values = [f"stages.1.training.{key}={value}" for key, value in training.items()] + args.set
    made = reported(
        folder, "share", teacher, "--groups", groups, "--residual-rank", rank, "--embedding-size", size,
        "--data", args.data, "--max-length", str(args.max_length), "--seed", str(seed),
        "--threads", str(args.threads), *(word for value in values for word in ("--set", value)),
    )  # fmt: skip
    models = {m["role"]: m["values"] for m in made["models"]}
    before, after = models["teacher"], models["student"]
    (teachers,) = evaluated(teacher, args.data, "validation", args.threads)
    validation = made["stages"]["1-distill"]["accuracy"]
    return {
        "MB": after["size/disk_mb"],
        "share": 100 * after["size/disk_mb"] / before["size/disk_mb"],
        "validation": 100 * validation,
        "validation kept": 100 * validation / teachers["quality/accuracy"],
        "test": 100 * after["quality/accuracy"],
        "test kept": 100 * after["quality/accuracy"] / before["quality/accuracy"],
    }


if __name__ == "__main__":
    main()

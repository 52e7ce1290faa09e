"""Full fine-tuning beside LoRA, BitFit and the last layers: parameters trained, peak memory, processor time, quality.

    python benchmarks/tuning.py --model FOLDER --data "$COMPRESS_DATA/sst2" --rows 4000 --steps 250

Every configuration and seed trains in a process of its own on the first `--rows` training rows, for the same number of
steps of 32 rows. Memory is by how much the process grows from the prepared model to the peak of training. Processor
time is that of training with one validation at the end. Quality is the main metric of the last weights on the
validation rows: none are chosen on them. A configuration is a value of `--tune`, with `@RATE` for a learning rate other
than the default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TUNINGS = ("all", "lora", "bitfit", "last-2", "last-1")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--tunings", nargs="+", default=TUNINGS, metavar="TUNE[@RATE]")
    p.add_argument("--rows", type=int, default=4000)
    p.add_argument("--steps", type=int, default=250)
    p.add_argument("--max-length", type=int, default=64)
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--one", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.one:
        name, seed = json.loads(args.one)
        print(json.dumps(train(name, seed, args)))
        return
    print(f"{args.data.name}: {args.rows:,} rows, {args.steps:,} steps of 32 rows, {args.seeds} seeds", flush=True)
    print("tune              trained    share   peak MB    CPU s   quality: mean, sd (each seed)", flush=True)
    for name in args.tunings:
        found = [in_a_process(name, seed) for seed in range(args.seeds)]
        mean = {key: statistics.mean(one[key] for one in found) for key in found[0]}
        values = [one["quality"] for one in found]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        shown = ", ".join(f"{value:.2f}" for value in values)
        print(
            f"{name:14} {mean['trained']:>10,.0f}  {mean['share']:>6.2f} %  {mean['memory']:>8.0f}"
            f" {mean['seconds']:>8.1f}   {mean['quality']:.2f}, {spread:.2f} ({shown})",
            flush=True,
        )


def in_a_process(name: str, seed: int) -> dict[str, float]:
    """The figures of one training: the processes before it have left nothing in its memory."""
    command = [sys.executable, *sys.argv, "--one", json.dumps([name, seed])]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def train(name: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Fine-tune once; quality and share in percent, memory in MB, processor time in seconds."""
    import torch

    from compress.console import Console
    from compress.contracts import Override, RunOptions, unwatched
    from compress.recipe import load_recipe
    from compress.run import Run, build_training_context, train_prepared
    from compress.stages.finetune.flags import TABLE
    from compress.training.context import NullLog
    from evaluation.cost.memory import peak_memory_mb

    torch.set_num_threads(args.threads)
    tune, _, rate = name.partition("@")
    convert = next(flag.convert for flag in TABLE.flags if flag.name == "--tune")
    assert convert is not None
    changes: dict[str, Any] = {
        "model": str(args.model),
        "data.source": str(args.data),
        "data.limit": args.rows,
        "data.max_length": args.max_length,
        "seed": seed,
        "stages.0.tune": convert(tune, "--tune"),
        "stages.0.training.steps": args.steps,
        "stages.0.training.keep_best": False,
        "stages.0.training.validate_every": args.steps,
        "stages.0.training.checkpoint_every": args.steps,
        "stages.0.training.learning_rate": float(rate) if rate else None,
    }
    recipe = load_recipe("finetune", tuple(Override(path, value, path) for path, value in changes.items()))
    run = Run(recipe, RunOptions(quiet=True), Console(quiet=True, json=True), None, {}, measures=False)
    run.sources.open()
    with tempfile.TemporaryDirectory() as folder:
        spec = recipe.stages[0]
        context = run.contexts.of(spec, Path(folder), run.contexts.get_start(), run.teachers())
        prepared = run.contexts.prepare(spec, context)
        results = []
        began = time.process_time()
        with unwatched("training", args.steps) as progress:
            told = build_training_context(prepared, context, log=NullLog(), progress=progress, stop=run.stop)
            memory = peak_memory_mb(lambda: results.append(train_prepared(prepared, told)))
        seconds = time.process_time() - began
        whole = prepared.finish().model
    assert whole is not None
    trained, count = prepared.params["finetune.trained_parameters"], sum(p.numel() for p in whole.parameters())
    quality = 100 * next(iter(results[0].last.values()))
    return {
        "trained": trained,
        "share": 100 * trained / count,
        "memory": memory,
        "seconds": seconds,
        "quality": quality,
    }


if __name__ == "__main__":
    main()

"""Which way of distilling helps? Recipes of the literature at equal steps, beside the same student on hard labels.

    python benchmarks/distillation.py --teachers FOLDER FOLDER FOLDER --data "$COMPRESS_DATA/sst2" --steps 689

One teacher a seed (seed 0 for the first, and so on). For every seed `distilbert-task` runs with its control, the other
recipes without one: student, start, batches and steps are the same. Recipes of two stages share the steps between
them. Ends with a table over the seeds: accuracy on validation and test, and the gain over the control on the test rows,
paired, per seed with its 95 % interval. Finished runs are found again, so it can be interrupted.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from commands import evaluated, finished

from compress.recipe import load_recipe

BASE = "distilbert-task"
RECIPES = (BASE, "pkd", "tinybert-task", "minilm", "minilmv2", "geometry", "contrastive", "decoupled")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--teachers", type=Path, nargs="+", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--recipes", nargs="+", default=RECIPES)
    p.add_argument("--steps", type=int, default=689)
    p.add_argument("--learning-rate", type=float, default=1e-4)
    p.add_argument("--max-length", type=int, default=64)
    p.add_argument("--output", type=Path, default=Path("runs/distillation"))
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    for seed, teacher in enumerate(args.teachers):
        control = args.output / f"{BASE}-{seed}" / "control"
        for recipe in dict.fromkeys((BASE, *args.recipes)):
            folder = train(recipe, seed, teacher, args)
            found.setdefault(recipe, []).append(score(folder / "student", control, args))
        found.setdefault("control", []).append(score(control, control, args))
        found.setdefault("teacher", []).append(score(teacher, control, args))
    report(found, args.steps)


def train(recipe: str, seed: int, teacher: Path, args: argparse.Namespace) -> Path:
    """Run a recipe unless its folder says that it finished."""
    folder = args.output / f"{recipe}-{seed}"
    stages = len(load_recipe(recipe).stages)
    words = ["distill", "--recipe", recipe, "--teacher", str(teacher), "--data", args.data, "--seed", str(seed)]
    words += ["--max-length", str(args.max_length), "--threads", str(args.threads)]
    for index in range(stages):
        steps = args.steps // stages + (args.steps % stages if index == 0 else 0)
        for key, value in (("steps", steps), ("epochs", "null"), ("learning_rate", args.learning_rate)):
            words += ["--set", f"stages.{index}.training.{key}={value}"]
    finished(folder, *words, *([] if recipe == BASE else ["--no-control"]))
    return folder


def score(model: Path, control: Path, args: argparse.Namespace) -> dict[str, float]:
    """Accuracy on both splits, and on test the paired difference to the control, in percent and points."""
    values: dict[str, float] = {}
    for split in ("validation", "test"):
        _, ours = evaluated(model, args.data, split, args.threads, "--against", str(control))
        values[split] = 100 * ours["quality/accuracy"]
    for part in ("", "_low", "_high"):
        values[f"gain{part}"] = 100 * ours[f"vs_teacher/accuracy_difference{part}"]
    return values


def report(found: dict[str, list[dict[str, float]]], steps: int) -> None:
    seeds = len(next(iter(found.values())))
    print(f"{seeds} seeds, {steps} steps each; mean (sd); gain over the control on test in points, with 95 % intervals")
    for name, rows in found.items():
        shown = []
        for split in ("validation", "test"):
            values = [row[split] for row in rows]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            shown.append(f"{split} {statistics.mean(values):.2f} ({spread:.2f})")
        gains = "  ".join(f"{r['gain']:+.2f} [{r['gain_low']:+.2f}, {r['gain_high']:+.2f}]" for r in rows)
        print(f"{name:16} {'  '.join(shown)}  {gains if name != 'control' else ''}", flush=True)


if __name__ == "__main__":
    main()

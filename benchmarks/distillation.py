"""Which way of distilling helps? Methods of the literature at equal steps, beside the same student on hard labels.

    python benchmarks/distillation.py --teachers FOLDER FOLDER FOLDER --data "$COMPRESS_DATA/sst2" --steps 689

One teacher a seed (seed 0 for the first, and so on). For every seed `soft-targets` runs with its control, the other
methods without one: student, start, batches and steps are the same. Recipes of two stages share the steps between
them. Ends with a table over the seeds: accuracy on validation and test, and the gain over the control on the test rows,
paired, per seed with its 95 % interval, and Student's interval of the mean over the seeds. Finished runs are found
again, so it can be interrupted.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from commands import evaluated, finished

from compress.recipe import load_recipe
from evaluation.quality.intervals import mean_interval

BASE = "soft-targets"
DISTILBERT = (
    "[{kind: soft_targets, on: task, temperature: 2.0}, {kind: cosine_hidden}, {kind: hard_labels, weight: 0.2}]"
)
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    BASE: ("distilbert-task", ()),
    "distilbert": ("distilbert-task", (f"stages.0.objectives={DISTILBERT}",)),
    "tinybert": ("tinybert-task", ()),
    **{name: (name, ()) for name in ("pkd", "minilm", "minilmv2", "geometry", "contrastive", "decoupled")},
}
"""Name → recipe and what is set in it. `distilbert` is the task stage of that recipe, on rows that have labels."""


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--teachers", type=Path, nargs="+", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    p.add_argument("--steps", type=int, default=689)
    p.add_argument("--learning-rate", type=float, default=1e-4)
    p.add_argument("--max-length", type=int, default=64)
    p.add_argument("--output", type=Path, default=Path("runs/distillation"))
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    for seed, teacher in enumerate(args.teachers):
        control = args.output / f"{BASE}-{seed}" / "control"
        for method in dict.fromkeys((BASE, *args.methods)):
            folder = train(method, seed, teacher, args)
            found.setdefault(method, []).append(score(folder / "student", control, args))
        found.setdefault("control", []).append(score(control, control, args))
        found.setdefault("teacher", []).append(score(teacher, control, args))
    report(found, args.steps)


def train(method: str, seed: int, teacher: Path, args: argparse.Namespace) -> Path:
    """Run a method unless its folder says that it finished."""
    folder = args.output / f"{method}-{seed}"
    recipe, changes = METHODS[method]
    stages = len(load_recipe(recipe).stages)
    words = ["distill", "--recipe", recipe, "--teacher", str(teacher), "--data", args.data, "--seed", str(seed)]
    words += ["--max-length", str(args.max_length), "--threads", str(args.threads)]
    for change in changes:
        words += ["--set", change]
    for index in range(stages):
        steps = args.steps // stages + (args.steps % stages if index == 0 else 0)
        for key, value in (("steps", steps), ("epochs", "null"), ("learning_rate", args.learning_rate)):
            words += ["--set", f"stages.{index}.training.{key}={value}"]
    finished(folder, *words, *([] if method == BASE else ["--no-control"]))
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
        print(f"{name:16} {'  '.join(shown)}  {gains + over_seeds(rows) if name != 'control' else ''}", flush=True)


def over_seeds(rows: list[dict[str, float]]) -> str:
    """The mean gain with Student's 95 % interval over the seeds; nothing where there is one."""
    values = [row["gain"] for row in rows]
    if len(values) < 2:
        return ""
    gain = mean_interval(values)
    return f"  mean {gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"


if __name__ == "__main__":
    main()

r"""Pretraining objectives at equal steps, then the same fine-tuning: one table.

    python benchmarks/pretraining.py --seeds 0 1
    python benchmarks/pretraining.py --corpus "$COMPRESS_DATA/wikitext2" --data "$COMPRESS_DATA/sst2" \
        --set data.limit=8000 stages.0.vocabulary_size=4000

For every recipe `pretrain-*` and every seed it runs `compress run RECIPE --seed S` and reads its figures: masked-LM
loss on the held-out text, and on the text of the training under the masks that it saw and under fresh ones (their
difference is the mask-overfitting gap); accuracy of the sentence-pair head; accuracy on the task after the
fine-tuning. Finished runs are found again, so it can be interrupted. A loss is the mean over masked pieces in nats; the
training text of `noise` is mistyped, so only its held-out loss compares with the others'.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from commands import QUICK_TIMING, reported

RECIPES = ("dynamic", "static", "nsp", "sop", "full-sentences", "noise", "sinusoidal", "electra")
COLUMNS = {
    "held-out loss": "mlm_loss",
    "seen masks": "mlm_loss_seen_masks",
    "fresh masks": "mlm_loss_fresh_masks",
    "gap": "mask_overfitting_gap",
    "pair accuracy": "pair_accuracy",
    "task accuracy": "accuracy",
}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    p.add_argument("--seeds", type=int, nargs="+", default=[0])
    p.add_argument("--output", type=Path, default=Path("runs/pretraining"))
    p.add_argument("--corpus", help="instead of the embedded one")
    p.add_argument("--data", help="instead of the embedded task")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--set", nargs="*", default=[], help="further KEY=VALUE for every recipe")
    args = p.parse_args()
    common = ["--threads", str(args.threads), "--quiet", *QUICK_TIMING]
    common += ["--corpus", args.corpus] if args.corpus else []
    common += ["--data", args.data] if args.data else []
    for value in args.set:
        common += ["--set", value]
    figures = {
        name: [run(args.output / f"{name}-{seed}", f"pretrain-{name}", seed, common) for seed in args.seeds]
        for name in args.recipes
    }
    print(f"seeds {', '.join(map(str, args.seeds))}; mean, and the range over the seeds where there are several\n")
    print(table(figures))


def run(folder: Path, recipe: str, seed: int, common: Sequence[str]) -> dict[str, float]:
    """The figures of one recipe and seed."""
    report = reported(folder, "run", recipe, "--seed", str(seed), *common)
    values = report["models"][0]["values"]
    return {**report["stages"]["1-pretrain"], "accuracy": values["quality/accuracy"]}


def table(figures: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """GitHub Markdown: a row per recipe, a column per figure."""
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|---|" + "--:|" * len(COLUMNS)]
    for name, found in figures.items():
        cells = [cell([f[key] for f in found if key in f], "accuracy" in title) for title, key in COLUMNS.items()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(values: Sequence[float], share: bool) -> str:
    """`0.123`, or `0.123 (0.110..0.135)` over several seeds; shares in per cent."""
    if not values:
        return ""
    form = (lambda v: f"{100 * v:.1f} %") if share else (lambda v: f"{v:.3f}")
    shown = form(statistics.mean(values))
    return shown if len(values) == 1 else f"{shown} ({form(min(values))}..{form(max(values))})"


if __name__ == "__main__":
    main()

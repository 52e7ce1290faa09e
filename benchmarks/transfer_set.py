"""Does a teacher pay where labels are few and text is plenty? Student and control at equal steps, on real data.

    python benchmarks/transfer_set.py --model FOLDER --data "$COMPRESS_DATA" --sets sst2:1000 banking77:1540 btc_ner:500

SET:N keeps the labels of N training rows, the same ones for every seed; the other rows are text. For every seed
the encoder FOLDER is fine-tuned on the labelled rows alone (the teacher), and three students with half of its layers,
cut from it, train for the same steps: on hard labels (the control), on the teacher's outputs for the labelled rows, and
on its outputs for all rows. Ends with a table: the main metric on test rows, and the gain over the control on the test
rows, paired, per seed with its 95 % interval, and Student's interval of the mean over the seeds. Finished runs are
found again, so it can be interrupted. --curve A B C: the control with A, B and C labelled rows, cut from the same
teacher: how many labels the text replaces. --augment METHOD: a student on the teacher's outputs for the labelled rows
and copies of them, made by METHOD of `compress distill --augment`; one student for each method.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from commands import QUICK_TIMING, evaluated, finished

from evaluation.quality.intervals import mean_interval

ROLES = ("teacher", "control", "labelled rows", "labelled rows and text")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="a pretrained encoder")
    p.add_argument("--data", type=Path, required=True, help="the folder that holds the sets")
    p.add_argument("--sets", nargs="+", required=True, metavar="SET:N")
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--steps", type=int, default=625, help="of the teacher, and of each student")
    p.add_argument("--learning-rate", type=float, default=1e-4, help="of the students")
    p.add_argument("--teacher-learning-rate", type=float, help="default: half of the students'")
    p.add_argument("--max-length", type=int, default=64)
    p.add_argument("--layers", default="1,3,5", help="of the teacher, that the students keep")
    p.add_argument("--curve", type=int, nargs="*", default=[])
    p.add_argument("--augment", nargs="*", default=[], metavar="METHOD")
    p.add_argument("--output", type=Path, default=Path("runs/transfer-set"))
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    for one in args.sets:
        name, _, labelled = one.partition(":")
        found: dict[str, list[dict[str, float]]] = {}
        for seed in args.seeds:
            for role, figures in measure(name, int(labelled), seed, args).items():
                found.setdefault(role, []).append(figures)
        report(one, found, args)


def measure(name: str, labelled: int, seed: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Train what is not trained yet; the figures of each model on the test rows, in hundredths."""
    folder, data = args.output / f"{name}-{labelled}-{seed}", str(args.data / name)
    common = ["--data", data, "--seed", str(seed), "--threads", str(args.threads)]
    common += ["--max-length", str(args.max_length), "--steps", str(args.steps), *QUICK_TIMING]
    few = ["--labelled-rows", str(labelled)]
    finished(
        folder / "teacher", "finetune", "--model", args.model, *common, *few,
        "--learning-rate", str(args.teacher_learning_rate or args.learning_rate / 2),
    )  # fmt: skip
    teacher = folder / "teacher/model"
    distil = ["distill", "--recipe", "distilbert-task", "--teacher", str(teacher), "--layers", args.layers, *common]
    distil += ["--learning-rate", str(args.learning_rate)]
    alone, text = (["--set", f"stages.0.use_unlabelled={use}"] for use in ("false", "true"))
    finished(folder / "labels", *distil, *few, *alone)
    finished(folder / "text", *distil, *few, *text, "--no-control")
    control = folder / "labels/control"
    models = dict(zip(ROLES, (teacher, control, folder / "labels/student", folder / "text/student"), strict=True))
    for method in args.augment:
        finished(folder / method, *distil, *few, *alone, "--augment", method, "--no-control")
        models[f"labelled rows, {method}"] = folder / method / "student"
    for rows in args.curve:
        place = folder / f"control-{rows}"
        finished(place, *distil, "--labelled-rows", str(rows), *alone)
        models[f"control, {rows:,} labels"] = place / "control"
    return {role: score(model, control, data, args) for role, model in models.items()}


def score(model: Path, control: Path, data: str, args: argparse.Namespace) -> dict[str, float]:
    """The main metric, and its paired difference to the control."""
    _, ours = evaluated(model, data, "test", args.threads, "--against", str(control))
    metric = next(k.removeprefix("vs_teacher/").removesuffix("_difference") for k in ours if k.endswith("_difference"))
    values = {"value": 100 * ours[f"quality/{metric}"]}
    for part in ("", "_low", "_high"):
        values[f"gain{part}"] = 100 * ours[f"vs_teacher/{metric}_difference{part}"]
    return values


def report(name: str, found: dict[str, list[dict[str, float]]], args: argparse.Namespace) -> None:
    print(f"{name}: {len(args.seeds)} seeds, {args.steps} steps each; mean (sd) on test rows; gain over the control")
    for role, rows in found.items():
        values = [row["value"] for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        line = f"{role:26} {statistics.mean(values):6.2f} ({spread:.2f})"
        if role != "control":
            line += "".join(f"  {r['gain']:+.2f} [{r['gain_low']:+.2f}, {r['gain_high']:+.2f}]" for r in rows)
            if len(rows) > 1:
                mean = mean_interval([row["gain"] for row in rows])
                line += f"  mean {mean.value:+.2f} [{mean.low:+.2f}, {mean.high:+.2f}]"
        print(line, flush=True)


if __name__ == "__main__":
    main()

"""Does distillation on plain text pay before fine-tuning? Layers of a pretrained encoder as they are, and after text.

    python benchmarks/text_stage.py --model FOLDER --data "$COMPRESS_DATA" --sets stsb:500 sst2:1000 --steps 1000 5000

For every number of --steps, half of the layers of the encoder FOLDER are distilled from it on a corpus
(`compress distill --recipe text-distil`), the training texts of --text-sets without their labels. These students, and
the same layers without any training, are fine-tuned on N training rows of each SET:N, with every seed, and so is the
whole encoder. Ends with a table for each set: the main metric on test rows, and the difference to the layers as they
are, paired, per seed with its 95 % interval, and Student's interval of the mean over the seeds. Finished runs are found
again, so it can be interrupted.

--teach: a second table for each set, of students that learn the fine-tuned whole encoder's outputs on the labelled rows
and on all others as text. They start from that encoder's layers, or from those after the distillation on plain text;
with --more-steps, the former also train for so many steps more.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from commands import QUICK_TIMING, finished
from transfer_set import report, score, write_corpus

TEXT_SETS = (
    "wikitext2", "pydocs", "squad_xquad_en", "policyqa", "stsb", "sick_nli", "btc_ner", "ud_ewt_pos", "wnut17",
    "banking77",
)  # fmt: skip
UNTRAINED = "the layers as they are"
WHOLE = "all layers"
CUT = "the teacher's layers"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="a pretrained encoder")
    p.add_argument("--data", type=Path, required=True, help="the folder that holds the sets")
    p.add_argument("--sets", nargs="+", required=True, metavar="SET:N")
    p.add_argument("--steps", type=int, nargs="+", default=[1000], help="of the distillation")
    p.add_argument("--layers", default="1,3,5")
    p.add_argument("--teach", action="store_true", help="distil from the fine-tuned encoder too")
    p.add_argument("--more-steps", type=int, default=0)
    p.add_argument("--text-sets", nargs="+", default=list(TEXT_SETS))
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--fine-tuning-steps", type=int, default=625)
    p.add_argument("--learning-rate", type=float, default=1e-4, help="of the fine-tuning")
    p.add_argument("--max-length", type=int, default=64, help="of the fine-tuning")
    p.add_argument("--output", type=Path, default=Path("runs/text-stage"))
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    encoders = {WHOLE: args.model, UNTRAINED: str(distil(args, 1, "1e-12"))}
    encoders |= {f"after {steps:,} steps on text": str(distil(args, steps)) for steps in args.steps}
    for one in args.sets:
        name, _, rows = one.partition(":")
        data = str(args.data / name)
        found: dict[str, list[dict[str, float]]] = {}
        taught: dict[str, list[dict[str, float]]] = {}
        for seed in args.seeds:
            tuned = {way: fine_tune(args, encoder, data, rows, seed) for way, encoder in encoders.items()}
            for way, model in tuned.items():
                found.setdefault(way, []).append(score(model, tuned[UNTRAINED], data, args.threads))
            if args.teach:
                students = teach(args, tuned[WHOLE], encoders, data, rows, seed)
                for way, model in students.items():
                    taught.setdefault(way, []).append(score(model, students[CUT], data, args.threads))
        report(f"{one}, {args.fine_tuning_steps} steps of fine-tuning", found, UNTRAINED)
        if taught:
            report(f"{one}, {args.fine_tuning_steps} steps of distillation after that", taught, CUT)


def distil(args: argparse.Namespace, steps: int, rate: str | None = None) -> Path:
    """The layers after so many steps on text."""
    folder = args.output / f"text-{steps}"
    corpus = write_corpus(args.data, args.text_sets, args.output)
    words = ["distill", "--recipe", "text-distil", "--teacher", args.model, "--corpus", str(corpus)]
    words += ["--layers", args.layers, "--steps", str(steps), "--threads", str(args.threads)]
    finished(folder, *words, *([] if rate is None else ["--learning-rate", rate]))
    return folder / "student"


def fine_tune(args: argparse.Namespace, encoder: str, data: str, rows: str, seed: int) -> Path:
    """An encoder, fine-tuned on so many labelled rows."""
    folder = args.output / f"{Path(data).name}-{rows}-{seed}-{Path(encoder).parent.name}"
    options = set_options(args, data, rows, seed, args.fine_tuning_steps)
    finished(folder, "finetune", "--model", encoder, *options)
    return folder / "model"


def teach(
    args: argparse.Namespace, teacher: Path, encoders: dict[str, str], data: str, rows: str, seed: int
) -> dict[str, Path]:
    """Students of half of the teacher's layers, by where they start and how long they train."""
    steps, layers = args.fine_tuning_steps, ["--layers", args.layers]
    ways: dict[str, tuple[list[str], int]] = {CUT: (layers, steps)}
    if args.more_steps:
        ways[f"{CUT}, {args.more_steps:,} steps more"] = (layers, steps + args.more_steps)
    ways |= {way: (["--student", encoder], steps) for way, encoder in encoders.items() if way not in (WHOLE, UNTRAINED)}
    students = {}
    for way, (start, length) in ways.items():
        folder = args.output / f"{Path(data).name}-{rows}-{seed}-taught-{way.replace(' ', '-')}"
        words = ["distill", "--recipe", "distilbert-task", "--teacher", str(teacher), "--no-control", *start]
        words += ["--set", "stages.0.use_unlabelled=true"]
        finished(folder, *words, *set_options(args, data, rows, seed, length))
        students[way] = folder / "student"
    return students


def set_options(args: argparse.Namespace, data: str, rows: str, seed: int, steps: int) -> list[str]:
    """The flags that fine-tuning and distillation share."""
    options = ["--data", data, "--labelled-rows", rows, "--seed", str(seed), "--steps", str(steps)]
    options += ["--learning-rate", str(args.learning_rate), "--max-length", str(args.max_length)]
    return [*options, "--threads", str(args.threads), *QUICK_TIMING]


if __name__ == "__main__":
    main()

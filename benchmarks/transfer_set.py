"""Does a teacher pay where labels are few and text is plenty? Student and control at equal steps, on real data.

    python benchmarks/transfer_set.py --model FOLDER --data "$COMPRESS_DATA" --sets sst2:1000 banking77:1540 btc_ner:500

SET:N keeps the labels of N training rows, the same ones for every seed; the other rows are text. For every seed
the encoder FOLDER is fine-tuned on the labelled rows alone (the teacher), and three students with half of its layers,
cut from it, train for the same steps: on hard labels (the control), on the teacher's outputs for the labelled rows, and
on its outputs for all rows. Ends with a table: the main metric on test rows, and the gain over the control on the test
rows, paired, per seed with its 95 % interval, and Student's interval of the mean over the seeds. Finished runs are
found again, so it can be interrupted. --curve A B C: the control with A, B and C labelled rows, cut from the same
teacher: how many labels the text replaces. --ways NAME: one more student for each, all from the same teacher's layers:

- mix, neighbours, masked-lm: copies of the labelled rows instead of text (`compress distill --augment`; masked-lm reads
  --masked-lm FOLDER);
- pool-words, pool-vectors: the passages of a corpus nearest to the labelled rows instead of text, ten for each. The
  corpus is the training texts of --pool-sets, which should have nothing to do with SET;
- column-probabilities, column-labels: the text with the teacher's answers as columns of the data, as a model behind an
  API gives them, without the teacher itself; column-labels@0.17 states that 17 % of them are wrong (`--teacher-noise`);
- confident, unsure, balanced, disagreement: the text, filtered (`--min-confidence 0.9`, `--max-confidence 0.99`,
  `--balance even`, `--disagreement student`);
- agreement: the text, with the weights that agree best with the teacher on held-out text (`--stop agreement`);
- multi-teacher: the text with this recipe, from the teachers of all seeds;
- any other name: the text with this recipe instead of `distilbert-task`.

The last column of a way compares it with the student on all rows, over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from commands import QUICK_TIMING, evaluated, finished

from compress.data.reading.sources import open_table
from evaluation.quality.intervals import mean_interval

ROLES = ("teacher", "control", "labelled rows", "labelled rows and text")
COPIES = ("mix", "neighbours", "masked-lm")
POOLS = {"pool-words": "words", "pool-vectors": "vectors"}
COLUMNS = ("column-probabilities", "column-labels")
FILTERS = {
    "confident": ("--min-confidence", "0.9"),
    "unsure": ("--max-confidence", "0.99"),
    "balanced": ("--balance", "even"),
    "disagreement": ("--disagreement", "student"),
    "agreement": ("--stop", "agreement"),
}
"""Ways that train on the text of the set itself: name → flags."""
TEXT_KEYS = ("text", "sentence1", "sentence2", "context", "question", "tokens")


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
    p.add_argument("--ways", nargs="*", default=[], metavar="NAME")
    p.add_argument("--pool-sets", nargs="*", default=["wikitext2", "pydocs", "squad_xquad_en", "policyqa", "stsb"])
    p.add_argument("--masked-lm", metavar="FOLDER", help="an encoder with a masked-LM head")
    p.add_argument("--output", type=Path, default=Path("runs/transfer-set"))
    p.add_argument("--threads", type=int, default=1)
    args = p.parse_args()
    for one in args.sets:
        name, _, labelled = one.partition(":")
        found: dict[str, list[dict[str, float]]] = {}
        for seed in args.seeds:
            for role, figures in measure(name, int(labelled), seed, args).items():
                found.setdefault(role, []).append(figures)
        title = f"{one}: {len(args.seeds)} seeds, {args.steps} steps each"
        report(title, found, ROLES[1], args.ways)


def measure(name: str, labelled: int, seed: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Train what is not trained yet; the figures of each model on the test rows, in hundredths."""
    folder, data = args.output / f"{name}-{labelled}-{seed}", str(args.data / name)
    common, few = set_options(seed, args), ["--data", data, "--labelled-rows", str(labelled)]
    teacher = train_teacher(name, labelled, seed, args)
    distil = ["distill", "--recipe", "distilbert-task", "--teacher", str(teacher), "--layers", args.layers, *common]
    distil += ["--learning-rate", str(args.learning_rate)]
    alone, text = (["--set", f"stages.0.use_unlabelled={use}"] for use in ("false", "true"))
    finished(folder / "labels", *distil, *few, *alone)
    finished(folder / "text", *distil, *few, *text, "--no-control")
    control = folder / "labels/control"
    models: dict[str, Path] = dict(
        zip(ROLES, (teacher, control, folder / "labels/student", folder / "text/student"), strict=True)
    )
    for way in args.ways:
        recipe, *flags = choose_way(way, args.data / name, labelled, folder, args)
        if way == "multi-teacher":
            for other in args.seeds:
                if other != seed:
                    flags += ["--teacher", str(train_teacher(name, labelled, other, args))]
        words = ["distill", "--recipe", recipe, "--layers", args.layers, *common, "--no-control"]
        finished(folder / way, *words, "--learning-rate", str(args.learning_rate), *flags)
        models[way] = folder / way / "student"
    for rows in args.curve:
        place = folder / f"control-{rows}"
        finished(place, *distil, "--data", data, "--labelled-rows", str(rows), *alone)
        models[f"control, {rows:,} labels"] = place / "control"
    return {role: score(model, control, data, args.threads) for role, model in models.items()}


def set_options(seed: int, args: argparse.Namespace) -> list[str]:
    """The flags that teachers and students share."""
    common = ["--seed", str(seed), "--threads", str(args.threads)]
    return [*common, "--max-length", str(args.max_length), "--steps", str(args.steps), *QUICK_TIMING]


def train_teacher(name: str, labelled: int, seed: int, args: argparse.Namespace) -> Path:
    """The encoder, fine-tuned on the labelled rows alone."""
    folder = args.output / f"{name}-{labelled}-{seed}/teacher"
    few = ["--data", str(args.data / name), "--labelled-rows", str(labelled)]
    rate = str(args.teacher_learning_rate or args.learning_rate / 2)
    words = ["finetune", "--model", args.model, *set_options(seed, args), *few, "--learning-rate", rate]
    finished(folder, *words)
    return folder / "model"


def choose_way(way: str, data: Path, labelled: int, folder: Path, args: argparse.Namespace) -> list[str]:
    """The recipe of a way, then its flags. folder: of this set and seed."""
    recipe, teacher = "distilbert-task", folder / "teacher/model"
    taught = ["--teacher", str(teacher), "--data", str(data)]
    few = ["--labelled-rows", str(labelled)]
    with_text = [*taught, *few, "--set", "stages.0.use_unlabelled=true"]
    if way in COPIES:
        model = ["--augment-model", args.masked_lm] if way == "masked-lm" else []
        return [recipe, *taught, *few, "--set", "stages.0.use_unlabelled=false", "--augment", way, *model]
    if way in POOLS:
        rows = write_labelled_rows(data, labelled, folder / "labelled-rows")
        corpus = write_corpus(args.data, args.pool_sets, args.output)
        return [recipe, "--teacher", str(teacher), "--data", str(rows), "--pool", str(corpus), "--pool-by", POOLS[way]]
    name, _, noise = way.partition("@")
    if name in COLUMNS:
        answered = write_answers(data, teacher, folder / "answers", args.threads)
        column = name.replace("column-", "teacher_")
        flags = ["--student", str(teacher), "--data", str(answered), *few, "--set", "stages.0.use_unlabelled=true"]
        return [recipe, *flags, "--teacher-column", column, *(["--teacher-noise", noise] if noise else [])]
    if way in FILTERS:
        return [recipe, *with_text, *FILTERS[way]]
    return [way, *with_text]


def write_labelled_rows(data: Path, labelled: int, folder: Path) -> Path:
    """A data folder whose training rows are the labelled ones alone."""
    kept = open_table(str(data), labelled_rows=labelled).splits["train"].numbers
    lines = (data / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    return write_data(folder, data, (lines[number - 1] for number in kept))


def write_answers(data: Path, teacher: Path, folder: Path, threads: int) -> Path:
    """A data folder whose training rows have the teacher's answers as columns, `teacher_probabilities` and
    `teacher_labels`."""
    if (folder / "train.jsonl").exists():
        return folder
    words = ["predict", str(teacher), "--file", str(data / "train.jsonl"), "--json", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "compress", *words, "--threads", str(threads)],
        stdout=subprocess.PIPE, encoding="utf-8", check=True,
    )  # fmt: skip
    rows = read_lines(data / "train.jsonl")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    lines = (
        json.dumps({**row, "teacher_probabilities": answer["probabilities"], "teacher_labels": answer["label"]}) + "\n"
        for row, answer in zip(rows, answers, strict=True)
    )
    return write_data(folder, data, lines)


def write_data(folder: Path, data: Path, train: Iterator[str]) -> Path:
    """A copy of the folder `data` with other training rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in data.iterdir():
        if file.name != "train.jsonl":
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "train.jsonl").write_text("".join(train), encoding="utf-8")
    return folder


def write_corpus(data: Path, sets: Sequence[str], folder: Path) -> Path:
    """The training texts of these sets as one text file, each text once, an empty line between two."""
    path = folder / f"{'-'.join(sets)}.txt"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = dict.fromkeys(
        " ".join(row[key] if isinstance(row[key], list) else row[key].split())
        for name in sets
        for row in read_lines(data / name / "train.jsonl")
        for key in TEXT_KEYS
        if row.get(key)
    )
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return path


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def score(model: Path, control: Path, data: str, threads: int) -> dict[str, float]:
    """The main metric, and its paired difference to the control."""
    _, ours = evaluated(model, data, "test", threads, "--against", str(control))
    metric = next(k.removeprefix("vs_teacher/").removesuffix("_difference") for k in ours if k.endswith("_difference"))
    values = {"value": 100 * ours[f"quality/{metric}"]}
    for part in ("", "_low", "_high"):
        values[f"gain{part}"] = 100 * ours[f"vs_teacher/{metric}_difference{part}"]
    return values


def report(
    title: str, found: Mapping[str, Sequence[Mapping[str, float]]], control: str, compared: Sequence[str] = ()
) -> None:
    """A line for each way: the metric, and the gain over the control. compared: ways that are compared with the student
    on all rows too."""
    print(f"{title}; mean (sd) on test rows; gain over {control}")
    for role, rows in found.items():
        values = [row["value"] for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        line = f"{role:26} {statistics.mean(values):6.2f} ({spread:.2f})"
        if role != control:
            line += "".join(f"  {r['gain']:+.2f} [{r['gain_low']:+.2f}, {r['gain_high']:+.2f}]" for r in rows)
            if len(rows) > 1:
                mean = mean_interval([row["gain"] for row in rows])
                line += f"  mean {mean.value:+.2f} [{mean.low:+.2f}, {mean.high:+.2f}]"
                if role in compared:
                    pairs = zip(rows, found[ROLES[-1]], strict=True)
                    mean = mean_interval([row["value"] - text["value"] for row, text in pairs])
                    line += f"  against the text {mean.value:+.2f} [{mean.low:+.2f}, {mean.high:+.2f}]"
        print(line, flush=True)


if __name__ == "__main__":
    main()

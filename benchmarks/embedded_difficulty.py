"""Is the first run convincing? The embedded opinions, over several seeds.

    python benchmarks/embedded_difficulty.py --seeds 0 1 2 --output runs/difficulty

For every seed: 1-2-gram TF-IDF with logistic regression on the rows of that seed (a bag of words must not do), and on
the default rows, with that training seed, the recipes `teacher-small` and `distilbert`: the teacher, its layer cut
without training, the student, and its control (the same layers on the same 1,000 hard labels, at equal steps), all on
clean test labels. `--labels` trains more controls, with other numbers of labels: how many the teacher and the text
replace. Ends with the five claims and whether each holds. CPU time is user + system of all processes, so that it can
be read on a busy machine. Finished runs are found again. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from commands import reported

CLAIMS = (
    ("a bag of words stays below 80 %", lambda r: r["bag of words"] < 80),
    ("the teacher is above 93 %", lambda r: r["teacher"] > 93),
    ("the untrained layer cut loses more than 10 points", lambda r: r["teacher"] - r["layer cut"] > 10),
    ("the student beats its control by more than chance", lambda r: r["gain, low end"] > 0),
    ("teacher, student and control take less than 5 minutes of CPU", lambda r: r["CPU minutes"] < 5),
)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--output", type=Path, default=Path("runs/difficulty"))
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--labels", type=int, nargs="*", default=[4000, 24000])
    p.add_argument("--only-words", action="store_true", help="the bag of words alone: seconds, no training")
    args = p.parse_args()
    columns: list[dict[str, float]] = []
    for seed in args.seeds:
        column = {"bag of words": 100 * bag_of_words(seed)}
        if not args.only_words:
            column |= trained(seed, args)
        columns.append(column)
        print(f"seed {seed}: " + ", ".join(f"{k} {v:.2f}" for k, v in column.items()), file=sys.stderr, flush=True)
    return report(args.seeds, columns)


def report(seeds: list[int], columns: list[dict[str, float]]) -> int:
    """Print the table and the claims; 1 when a claim fails on any seed."""
    head = "".join(f"{f'seed {s}':>10}" for s in seeds)
    print(f"{'':28}{head}{'mean':>10}{'sd':>8}")
    for name in columns[0]:
        values = [c[name] for c in columns]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name:28}{''.join(f'{v:10.2f}' for v in values)}{statistics.mean(values):10.2f}{spread:8.2f}")
    failed = 0
    for text, holds in CLAIMS:
        try:
            held = [holds(c) for c in columns]
        except KeyError:  # not measured with --only-words
            continue
        failed += not all(held)
        print(f"{'holds' if all(held) else 'FAILS'}: {text} ({sum(held)} of {len(held)} seeds)")
    return int(failed > 0)


def bag_of_words(seed: int) -> float:
    """Accuracy on clean test labels; the regularisation is the best of three, so that the floor is not set too low."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    from compress.data import embedded

    splits = embedded.generate("opinions", seed)
    texts = {name: [row["text"] for row in splits[name]] for name in ("train", "test")}
    labels = {name: [row["label"] for row in splits[name]] for name in ("train", "test")}
    vectorizer = TfidfVectorizer(ngram_range=(1, 2))
    train, test = vectorizer.fit_transform(texts["train"]), vectorizer.transform(texts["test"])
    models = (LogisticRegression(C=c, max_iter=2000).fit(train, labels["train"]) for c in (1, 10, 100))
    return max(float(model.score(test, labels["test"])) for model in models)


def trained(seed: int, args: argparse.Namespace) -> dict[str, float]:
    """The figures of one seed, in percent, points and minutes."""
    teacher, student = args.output / f"teacher-{seed}", args.output / f"distilbert-{seed}"
    shared = ["--seed", str(seed), "--threads", str(args.threads)]
    _, minutes = command(teacher, "run", "teacher-small", *shared)
    distil = ["distill", "--recipe", "distilbert", "--teacher", str(teacher / "model"), *shared]
    report, more = command(student, *distil)
    scores = get_scores(report)
    controls = {}
    for count in args.labels:
        hard = ["--set", f"data.labelled_rows={count}", "--set", "stages.0.use_unlabelled=false"]
        hard += ["--set", "stages.0.objectives=[{kind: hard_labels}]", "--no-control"]
        found, _ = command(args.output / f"labels-{count}-{seed}", *distil, *hard)
        controls[f"control, {count:,} labels"] = get_scores(found)["student"]
    cut, gain = untrained_cut_and_gain(teacher / "model", student)
    return {
        "teacher": scores["teacher"],
        "layer cut": 100 * cut,
        "control": scores["control"],
        **controls,
        "student": scores["student"],
        "gain": 100 * gain.difference.value,
        "gain, low end": 100 * gain.difference.low,
        "gain, high end": 100 * gain.difference.high,
        "CPU minutes": minutes + more,
    }


def get_scores(report: dict[str, Any]) -> dict[str, float]:
    """Accuracy in percent, by role."""
    return {m["role"]: 100 * m["values"]["quality/accuracy"] for m in report["models"]}


def command(folder: Path, *words: str) -> tuple[dict[str, Any], float]:
    """The report of a command that works in `folder`, and its CPU minutes, also of an earlier run."""
    spent = folder / "cpu-minutes.json"
    before = os.times()
    report = reported(folder, *words)
    after = os.times()
    minutes = (after.children_user + after.children_system - before.children_user - before.children_system) / 60
    minutes += json.loads(spent.read_text()) if spent.exists() else 0.0
    spent.write_text(json.dumps(minutes))
    return report, minutes


def untrained_cut_and_gain(teacher: Path, run: Path) -> tuple[float, Any]:
    """Accuracy of the student's layers as cut from the fine-tuned teacher, and student against control, paired."""
    import torch

    from compress.contracts import Needs
    from compress.data.batches.evaluation_batches import evaluation_batches
    from compress.data.reading.sources import open_table
    from compress.encoder.reshape.students import take_layers
    from compress.modelfolder import folder as modelfolder
    from compress.predict.predictor import MAX_TOKENS, Predictor
    from compress.recipe import load_recipe
    from compress.stages.distill import layers
    from evaluation.quality.paired import paired_accuracy

    rows = open_table("opinions").split("test")
    model = Predictor(teacher)
    examples = model.encode_rows(rows, max_length=64)
    gold = examples.labels
    keep = layers.resolve(load_recipe("distilbert").stages[0].student, modelfolder.inspect(teacher).config.depth)
    cut = take_layers(model.model, keep).eval()
    right = 0
    with torch.inference_mode():
        for batch in evaluation_batches(examples, MAX_TOKENS):
            logits = cut(batch, Needs(logits=True)).logits
            assert logits is not None
            right += int((logits.argmax(1).numpy() == gold[batch.row_ids.numpy()]).sum())
    correct = {name: Predictor(run / name).logits(examples).argmax(1) == gold for name in ("student", "control")}
    return right / len(gold), paired_accuracy(correct["student"], correct["control"])


if __name__ == "__main__":
    sys.exit(main())

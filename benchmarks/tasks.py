"""A model of any task beside what a rule without training gets on the same rows.

    python benchmarks/tasks.py --data "$COMPRESS_DATA/btc_ner" --model runs/btc_ner/model
    python benchmarks/tasks.py --data "$COMPRESS_DATA/ud_ewt_pos"

The rule, learned from the train split by counting: the commonest tag of each word (of all words, where it is new);
naive Bayes over words (multinomial, add-one) for one label a row; the share of words in common for two texts with a
score; the commonest set of labels for several. Prints every metric of the task with its 95 % bootstrap interval over
rows (sentences, of tags).
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from commands import evaluated

from compress.data.batches.examples import Examples
from compress.data.batches.ragged import Ragged
from compress.data.reading.sources import open_table
from compress.data.tables.table import Rows, Table
from compress.data.tasks import task_of

WORD = re.compile(r"\w+")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--task", help="kind of task, where the data does not say")
    p.add_argument("--split", default="test")
    p.add_argument("--model", nargs="*", default=[], help="folders to measure with `compress evaluate`")
    p.add_argument("--bootstrap", type=int, default=1000)
    args = p.parse_args()
    table = open_table(args.data, task=args.task)
    if table.task not in RULES:
        raise SystemExit(f"no rule for {table.task}; known: {', '.join(RULES)}")
    name, outputs, examples = RULES[table.task](table, table.split(args.split))
    scored = task_of(table.task).score(outputs, table.label_names, examples, table.split(args.split))
    found = {m: scored.interval(m, resamples=args.bootstrap) for m in scored.metrics}
    figures = {name: {m: (i.value, i.low, i.high) for m, i in found.items()}}
    for folder in args.model:
        figures[folder] = measured(folder, args, tuple(found))
    print(f"{table.name}: {table.task}, {len(table.split(args.split)):,} rows of {args.split}")
    width = max(map(len, figures))
    print(" " * width, *(f"{metric:>22}" for metric in found))
    for model, values in figures.items():
        cells = (f"{100 * v:.2f} [{100 * a:.2f}, {100 * b:.2f}]" for v, a, b in (values[m] for m in found))
        print(f"{model:{width}}", *(f"{cell:>22}" for cell in cells))


def measured(folder: str, args: argparse.Namespace, metrics: tuple[str, ...]) -> dict[str, tuple[float, float, float]]:
    """Quality of a model folder by the command."""
    more = ["--bootstrap", str(args.bootstrap), *(["--task", args.task] if args.task else [])]
    (values,) = evaluated(folder, args.data, args.split, 1, *more)
    return {m: (values[f"quality/{m}"], values[f"quality/{m}_low"], values[f"quality/{m}_high"]) for m in metrics}


# --- rules: (name, outputs as a head would give them, examples that they belong to) ------------------------------


def commonest_tag(table: Table, rows: Rows) -> tuple[str, np.ndarray, Examples]:
    """Every word as one token, answered with its commonest tag in train."""
    train = table.split("train")
    assert isinstance(train.labels, Ragged)
    assert isinstance(rows.labels, Ragged)
    seen: dict[str, Counter[int]] = defaultdict(Counter)
    spoken: list[str] = [word for row in train.columns["words"].to_pylist() for word in row]
    for word, tag in zip(spoken, train.labels.values.tolist(), strict=True):
        seen[word][tag] += 1
    overall = Counter(train.labels.values.tolist()).most_common(1)[0][0]
    best = {word: tags.most_common(1)[0][0] for word, tags in seen.items()}
    asked: list[str] = [word for row in rows.columns["words"].to_pylist() for word in row]
    offsets = rows.labels.offsets
    numbers = np.arange(len(asked)) - np.repeat(offsets[:-1], np.diff(offsets))
    examples = plain(rows, offsets, rows.labels.values, numbers.astype(np.int32))
    return (
        "commonest tag of each word",
        one_hot([best.get(w, overall) for w in asked], len(table.label_names)),
        examples,
    )


def naive_bayes(table: Table, rows: Rows) -> tuple[str, np.ndarray, Examples]:
    train = table.split("train")
    place: dict[str, int] = {}
    for words in texts(train):
        for word in words:
            place.setdefault(word, len(place))
    counts = np.ones((len(table.label_names), len(place)))
    labels = np.asarray(train.labels)
    for label, words in zip(labels.tolist(), texts(train), strict=True):
        np.add.at(counts[label], [place[w] for w in words], 1)
    weights = np.log(counts / counts.sum(1, keepdims=True))
    prior = np.log(np.bincount(labels, minlength=len(counts)) / len(labels))
    known = ([place[w] for w in words if w in place] for words in texts(rows))
    return "naive Bayes over words", np.array([prior + weights[:, at].sum(1) for at in known]), plain(rows)


def overlap(table: Table, rows: Rows) -> tuple[str, np.ndarray, Examples]:
    shares = []
    for part in rows.contents():
        for row in part:
            sides = [set(WORD.findall(text.lower())) for text in row]
            shares.append(len(set.intersection(*sides)) / max(1, len(set.union(*sides))))
    return "share of words in common", np.array(shares)[:, None], plain(rows)


def commonest_set(table: Table, rows: Rows) -> tuple[str, np.ndarray, Examples]:
    best = Counter(map(tuple, np.asarray(table.split("train").labels).tolist())).most_common(1)[0][0]
    return "commonest set of labels", np.tile(np.array(best) - 0.5, (len(rows), 1)), plain(rows)


def texts(rows: Rows) -> list[list[str]]:
    """The words of each row; those of a second text count as others."""
    return [
        [f"{i}{word}" for i, text in enumerate(row) for word in WORD.findall(text.lower())]
        for part in rows.contents()
        for row in part
    ]


def one_hot(numbers: Sequence[int | None], classes: int) -> np.ndarray:
    return np.eye(classes)[np.array(numbers, dtype=np.int64)]


def plain(rows: Rows, offsets=None, labels=None, words=None) -> Examples:
    """Rows without text: one token each, or one for each word."""
    bounds = np.arange(len(rows) + 1) if offsets is None else offsets
    tokens = int(bounds[-1])
    given = np.asarray(rows.labels) if labels is None else labels
    nothing = np.zeros(tokens, dtype=np.int32)
    return Examples(nothing, bounds, nothing, nothing == 1, given, rows.numbers, 0, "", words)


RULES = {
    "token-classification": commonest_tag,
    "classification": naive_bayes,
    "pair-classification": naive_bayes,
    "regression": overlap,
    "multi-label": commonest_set,
}


if __name__ == "__main__":
    main()

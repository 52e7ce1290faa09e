"""Memory and open handles of a long training and of a long stream of predictions: do they stay flat?

    python benchmarks/soak.py [--steps 50000] [--rows 2000000] [--workers N] [--data-rows 0] [--folder FOLDER] [--json]

Makes an encoder of one layer x 16 and rows of invented words, runs `compress finetune` for `--steps` steps of 4 rows,
and pipes `--rows` rows into `compress predict --file -`, with one thread each; 0 leaves one out. Each process is looked
at twice a second: resident memory (mapped files included), open handles and threads, as the kernel counts them. The
verdict compares what it holds at the end with what it held after a tenth of the work: flat is at most 64 MB and 4
handles more. The peaks of the whole processes include loading and, of the training, the measurement after it.

`--workers N` predicts a file of the rows by `compress predict --output FOLDER --workers N` instead: the command and
each worker are looked at, a whole shard of 65,536 rows at a time.

`--data-rows N` trains on that many rows instead of 2,000: the memory that the data takes is the difference to a run
without it. Ends with 1 when something grew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

FLAT_MB, FLAT_HANDLES = 64, 4
EVERY = 0.5  # seconds between samples
BLOCK = 10_000  # rows made at once
SHARD_ROWS = 65_536  # the default of --shard-rows
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [a + b + c for a in LETTERS for b in LETTERS for c in "aeiou"]
SIGNS = {"negative": ("awful", "bad", "dull", "poor"), "positive": ("fine", "good", "great", "lovely")}
STEP = re.compile(r"finetune (\d+)/\d+ ")


@dataclass(frozen=True)
class Sample:
    """A process at one moment. done: steps or rows.  memory: resident, in MB; peak: the most that it was."""

    done: int
    memory: float
    handles: int
    threads: int
    peak: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What grew from a tenth of the work to its end. cpu: seconds of the whole process and of those that it has ended,
    0 of a worker; peak: its memory in MB."""

    what: str
    done: int
    early: Sample
    late: Sample
    peak: float
    cpu: float
    flat: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50_000, help="of training (default 50000)")
    parser.add_argument("--rows", type=int, default=2_000_000, help="that are predicted (default 2000000)")
    parser.add_argument("--workers", type=int, help="predict a file of the rows by so many workers")
    parser.add_argument("--data-rows", type=int, default=2000, help="that are trained on (default 2000)")
    parser.add_argument("--folder", type=Path, help="where; a temporary folder when not given")
    parser.add_argument("--json", action="store_true", help="one JSON object per process on standard output")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = args.folder or Path(temporary)
        found = list(soak(folder, args.steps, args.rows, args.data_rows, args.workers))
    for verdict in found:
        print(json.dumps(asdict(verdict)) if args.json else describe(verdict))
    return 0 if all(verdict.flat for verdict in found) else 1


def soak(folder: Path, steps: int, rows: int, data_rows: int, workers: int | None = None) -> Iterator[Verdict]:
    """The verdict on each process, in a folder that keeps what was made."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for seed, (split, count) in enumerate({"train": data_rows, "validation": 300, "test": 300}.items()):
        with (data / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for text, label in texts(count, seed):
                file.write(f'{{"text": "{text}", "label": "{label}"}}\n')
    model = make_model(folder / "model")
    if steps:
        yield train(folder, model, data, steps)
    if rows and workers:
        yield from predict_by_workers(folder, model, rows, workers)
    elif rows:
        yield predict(folder, model, rows)


def texts(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """(text, label) of rows of 4 to 19 words, the last of which gives the label."""
    random = np.random.default_rng(seed)
    signs = [(word, label) for label, words in SIGNS.items() for word in words]
    for start in range(0, count, BLOCK):
        rows = min(BLOCK, count - start)
        lengths = random.integers(3, 19, rows)
        words = iter(random.integers(0, len(WORDS), int(lengths.sum())).tolist())
        for length, sign in zip(lengths.tolist(), random.integers(0, len(signs), rows).tolist(), strict=True):
            word, label = signs[sign]
            yield " ".join([*(WORDS[next(words)] for _ in range(length)), word]), label


def make_model(folder: Path) -> Path:
    """An encoder of one layer with random weights and a head for the two labels."""
    from compress.data.text.tokenizer import Tokenizer
    from compress.encoder.config.encoder import EncoderConfig, HeadConfig
    from compress.encoder.modules.model import Model
    from compress.modelfolder.folder import FolderMeta, save_model

    if not folder.exists():
        tokenizer = Tokenizer.train((text for text, _ in texts(20_000, 0)), vocabulary_size=2000)
        config = EncoderConfig.uniform(
            vocabulary=tokenizer.vocabulary_size, hidden=16, layers=1, heads=2, feed_forward=32, max_positions=64
        )
        model = Model(config, {"task": HeadConfig("classification", labels=len(SIGNS))}).initialize(0)
        meta = FolderMeta(task="classification", label_names=tuple(SIGNS), max_length=32)
        save_model(folder, model, tokenizer_files=tokenizer.files(), meta=meta)
    return folder


def train(folder: Path, model: Path, data: Path, steps: int) -> Verdict:
    """`compress finetune`, looked at from its first step to its last."""
    words = ["finetune", str(model), "--data", str(data), "--output", str(folder / f"run-{time.time_ns()}")]
    words += ["--batch-size", "4", "--max-length", "32", "--set", f"stages.0.training.steps={steps}"]
    process = start(folder, words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    at = [0]
    seen: list[str] = []

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            seen.append(line.decode())
            if step := STEP.search(seen[-1]):
                at[0] = int(step[1])

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    samples, used = watch(process, lambda: at[0])
    listener.join()
    if process.returncode:
        sys.exit("".join(seen[-3:]))
    return judge("training steps", [s for s in samples if 0 < s.done < steps], used)


def predict(folder: Path, model: Path, rows: int) -> Verdict:
    """`compress predict`, which is given rows as fast as it takes them, looked at from its first answer to its last."""
    words = ["predict", str(model), "--file", "-", "--quiet"]
    process = start(folder, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    at = [0]

    def feed(stdin: IO[bytes]) -> None:
        with stdin:
            for text, _ in texts(rows, 1):
                stdin.write(text.encode() + b"\n")

    def count(stdout: IO[bytes]) -> None:
        for _ in stdout:
            at[0] += 1

    assert process.stdin is not None
    assert process.stdout is not None
    workers = [
        threading.Thread(target=feed, args=(process.stdin,)),
        threading.Thread(target=count, args=(process.stdout,)),
    ]
    for worker in workers:
        worker.start()
    samples, used = watch(process, lambda: at[0])
    for worker in workers:
        worker.join()
    if at[0] != rows:
        sys.exit(f"{at[0]:,} answers to {rows:,} rows")
    return judge("predicted rows", [s for s in samples if s.done], used)


def predict_by_workers(folder: Path, model: Path, rows: int, workers: int) -> Iterator[Verdict]:
    """`compress predict --output --workers`, the command and each worker looked at from the first shard to the last."""
    file, output = folder / f"{rows}.txt", folder / f"answers-{time.time_ns()}"
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{text}\n" for text, _ in texts(rows, 1))
    words = ["predict", str(model), "--file", str(file), "--output", str(output), "--workers", str(workers), "--quiet"]
    process = start(folder, words)
    seen: dict[int, list[Sample]] = {}

    def count() -> int:
        done = min(rows, SHARD_ROWS * len(list(output.glob("shards/[0-9]*"))))
        for pid in list_children(process.pid):
            if (sample := look(pid, done)) is not None:
                seen.setdefault(pid, []).append(sample)
        return done

    samples, used = watch(process, count)
    if process.returncode:
        sys.exit(process.returncode)
    yield judge("predicted rows, the command", [s for s in samples if s.done], used)
    for number, (_, own) in enumerate(sorted(seen.items()), 1):
        if any(s.done for s in own):
            yield judge(f"predicted rows, worker {number}", [s for s in own if s.done], None)


def list_children(pid: int) -> list[int]:
    """The processes that a process has started, and that have not ended."""
    try:
        found = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for one in found for child in one.read_text().split()]
    except OSError:
        return []


def start(folder: Path, words: list[str], **streams: int) -> subprocess.Popen[bytes]:
    """`compress …` with its caches and its store in `folder`."""
    env = os.environ | {"COMPRESS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    env["MLFLOW_TRACKING_URI"] = f"sqlite:///{(folder / 'mlflow.db').absolute()}"
    return subprocess.Popen([sys.executable, "-m", "compress", *words, "--threads", "1"], env=env, **streams)


def watch(process: subprocess.Popen[bytes], done: Callable[[], int]) -> tuple[list[Sample], resource.struct_rusage]:
    """Samples of a process until it ends, and what it used."""
    found: list[Sample] = []
    while True:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            return found, used
        if (sample := look(process.pid, done())) is not None:
            found.append(sample)
        time.sleep(EVERY)


def look(pid: int, done: int) -> Sample | None:
    """A process as the kernel sees it; None when it has ended."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        handles = len(os.listdir(f"/proc/{pid}/fd"))
        memory, peak = (int(status[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
        return Sample(done, memory, handles, int(status["Threads"]), peak)
    except (OSError, KeyError):
        return None


def judge(what: str, samples: Sequence[Sample], used: resource.struct_rusage | None) -> Verdict:
    """The last sample beside the first one after a tenth of the work. used: by the process; None: not known."""
    if not samples:
        sys.exit(f"too few {what}: the process ended between two looks at it")
    late = samples[-1]
    early = next(s for s in samples if s.done >= late.done / 10)
    flat = late.memory - early.memory <= FLAT_MB and late.handles - early.handles <= FLAT_HANDLES
    cpu = 0.0 if used is None else used.ru_utime + used.ru_stime
    return Verdict(what, late.done, early, late, round(max(s.peak for s in samples)), round(cpu, 1), flat)


def describe(verdict: Verdict) -> str:
    """A line for people."""
    early, late = verdict.early, verdict.late
    cpu = f", {verdict.cpu:.0f} CPU seconds" if verdict.cpu else ""
    return (
        f"{verdict.what}: {'flat' if verdict.flat else 'GROWS'}; from {early.done:,} to {late.done:,}: "
        f"memory {early.memory:.0f} to {late.memory:.0f} MB, handles {early.handles} to {late.handles}, "
        f"threads {early.threads} to {late.threads}; peak {verdict.peak:.0f} MB{cpu}"
    )


if __name__ == "__main__":
    sys.exit(main())

"""Peak memory of `compress pretrain` on a corpus that is larger than it: generated here, read from its files.

    python benchmarks/corpus_memory.py [--gigabytes 5] [--folder FOLDER] [--steps 20] [--minutes 600] [--json]

Writes `--gigabytes` of JSONL in files of 256 MB (sentences of invented words, frequent ones more often, as in a text),
trains a tokenizer on the first 8 MB, and pretrains an encoder of 2 layers x 128 for `--steps` steps of 32 blocks. The
peak is the kernel's for the whole child process (`ru_maxrss`), mapped files included. A named folder keeps what was
made: called again, the corpus is not written twice, and tokenizing that was stopped (by `--minutes`) goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FILE = 256 << 20  # bytes
WORDS, SENTENCES = 50_000, 100_000
RESERVE = 3.0  # bytes of disk for each byte of text: the text, its tokens, and room
LIMIT_MB = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="of text (default 5)")
    parser.add_argument("--folder", type=Path, help="where; a temporary folder when not given")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=600, help="stop the pretraining after so long")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="corpus-memory-"))
    try:
        told = measure(args, folder)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)
    if args.json:
        print(json.dumps(told))
        return
    for name, value in told.items():
        print(f"{name:24} {value}")


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write the corpus if it is not there, pretrain on it, and say how it went."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = int(args.gigabytes * 1e9)
    free = shutil.disk_usage(folder).free + sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    if free < RESERVE * wanted:
        sys.exit(f"{folder}: {free / 1e9:.1f} GB free, {RESERVE * wanted / 1e9:.1f} GB wanted")
    began = time.perf_counter()
    size = write_corpus(folder / "corpus", wanted)
    generated = time.perf_counter() - began
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(corpus=folder / "corpus", sample=folder / "sample.jsonl", steps=args.steps))
    if not (folder / "tokenizer" / "model" / "tokenizer.json").is_file():
        sample(folder)
        source = f"corpus.source={folder / 'sample.jsonl'}"
        run(
            ["tokenizer", "--recipe", str(recipe), "--set", source, "--output", str(folder / "tokenizer")], folder, 3600
        )
    began = time.perf_counter()
    command = ["pretrain", "--recipe", str(recipe), "--tokenizer", str(folder / "tokenizer" / "model")]
    command += ["--threads", "1", "--output", str(folder / "run")]
    command += ["--resume"] if (folder / "run").exists() else []
    before = peak_mb()
    code = run(command, folder, 60 * args.minutes)
    tokens = sum(path.stat().st_size // 4 for path in folder.glob("cache/tokens/*/shard-*/ids.bin"))
    return {
        "text, GB": round(size / 1e9, 2),
        "tokens on the disk, M": round(tokens / 1e6, 1),
        "steps": args.steps if code == 0 else f"stopped ({code}): call again to go on",
        "peak memory, MB": round(peak_mb()),
        "of the children before": round(before),
        "limit, MB": LIMIT_MB,
        "seconds, corpus written": round(generated),
        "seconds, pretraining": round(time.perf_counter() - began),
    }


def write_corpus(folder: Path, wanted: int) -> int:
    """Files of JSONL until there are `wanted` bytes; those that are there stay. Returns the bytes."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    pool = sentences(random)
    total = 0
    for number in range(-(-wanted // FILE)):
        path = folder / f"train-{number:04d}.jsonl"
        if not path.is_file():
            write_file(path, pool, np.random.default_rng(number + 1), min(FILE, wanted - total))
        total += path.stat().st_size
    return total


def sentences(random: np.random.Generator) -> list[str]:
    """Of 4 to 30 words, drawn with frequencies that fall as in a text (Zipf)."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    weights = 1 / np.arange(1, len(letters) + 1)
    drawn = random.choice(letters, (WORDS, 12), p=weights / weights.sum())
    words = ["".join(row[:n]) for row, n in zip(drawn, random.integers(2, 12, WORDS), strict=True)]
    share = 1 / np.arange(3, WORDS + 3)
    lengths = random.integers(4, 31, SENTENCES)
    numbers = iter(random.choice(WORDS, int(lengths.sum()), p=share / share.sum()).tolist())
    return [" ".join(words[next(numbers)] for _ in range(n)).capitalize() + "." for n in lengths.tolist()]


def write_file(path: Path, pool: list[str], random: np.random.Generator, size: int) -> None:
    """Documents of 3 to 40 sentences, each with words of its own so that none is like another."""
    temporary = path.with_suffix(".part")
    with temporary.open("w", encoding="utf-8") as file:
        number = 0
        while file.tell() < size:
            lines = []
            for count in random.integers(3, 41, 2000).tolist():
                chosen = random.integers(0, len(pool), count)
                number += 1
                lines.append(f'{{"text": "{path.stem} {number}. {" ".join([pool[i] for i in chosen])}"}}\n')
            file.write("".join(lines))
    temporary.replace(path)


def sample(folder: Path) -> None:
    """The first 8 MB of the corpus, for the tokenizer."""
    with (folder / "corpus" / "train-0000.jsonl").open(encoding="utf-8") as file:
        (folder / "sample.jsonl").write_text("".join(file.readlines(8 << 20)), encoding="utf-8")


def run(args: list[str], folder: Path, seconds: float) -> int:
    """`compress …` with its caches and its store in `folder`; 124 when the time was over."""
    env = os.environ | {"COMPRESS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    args = [sys.executable, "-m", "compress", *args, "--tracking-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    try:
        done = subprocess.run(args, env=env, stdout=sys.stderr, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return 124
    if done.returncode not in (0, 75):
        sys.exit(done.returncode)
    return done.returncode


def peak_mb() -> float:
    """The largest resident memory that a finished child had."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6


RECIPE = """
name: corpus-memory
seed: 0
corpus:
  source: {corpus}
  stream: true
stages:
  - kind: tokenizer
    vocabulary_size: 8000
  - kind: pretrain
    encoder: {{layers: 2, hidden: 128, heads: 2, intermediate_size: 512, max_positions: 128}}
    training: {{steps: {steps}, batch_rows: 32, learning_rate: 1.0e-4, log_every: 5}}
"""


if __name__ == "__main__":
    main()

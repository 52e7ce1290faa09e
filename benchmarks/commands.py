"""Running the commands of this project from a benchmark: what is done is found again, what was stopped goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def finished(folder: Path, *words: str, accepted: Sequence[int] = (0,)) -> None:
    """Run a command that works in `folder`, unless the folder says that it finished. accepted: exit codes that leave a
    result."""
    record = folder / "compress-run.json"
    if record.exists() and json.loads(record.read_text(encoding="utf-8"))["status"] == "finished":
        return
    again = ["--resume"] if record.exists() else []
    done = subprocess.run([sys.executable, "-m", "compress", *words, "--output", str(folder), *again], check=False)
    if done.returncode not in accepted:
        raise SystemExit(f"compress {' '.join(words)}: exit code {done.returncode}")


def reported(folder: Path, *words: str) -> dict[str, Any]:
    """The JSON report of a command that works in `folder`, kept there, from its finished run or by running it."""
    report = folder / "report.json"
    if not report.exists():
        again = ["--resume"] if folder.exists() else []
        report.write_text(_printed(*words, "--output", str(folder), "--json", *again), encoding="utf-8")
    return json.loads(report.read_text(encoding="utf-8"))


def evaluated(model: Path | str, data: str, split: str, threads: int, *more: str) -> list[dict[str, float]]:
    """The figures of `compress evaluate` without speed, a model each: the one compared with, if any, comes first."""
    words = ["evaluate", str(model), "--data", data, "--split", split, "--threads", str(threads), "--no-speed", *more]
    return [m["values"] for m in json.loads(_printed(*words, "--json", "--quiet"))["models"]]


def _printed(*words: str) -> str:
    """What a command prints on stdout."""
    done = subprocess.run([sys.executable, "-m", "compress", *words], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout

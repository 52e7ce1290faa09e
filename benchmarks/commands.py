"""Running the commands of this project from a benchmark: what is done is found again, what was stopped goes on."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOPPED = 75
"""The exit code of a command that was asked to stop and may be continued."""
QUICK_TIMING = tuple(
    word
    for value in ("latency.seconds=1", "latency.repeats=5", "throughput_rows=16")
    for word in ("--set", f"evaluation.{value}")
)
"""Flags for commands whose speed is not reported."""


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


@dataclass(frozen=True)
class Price:
    """Milliseconds that a row takes: of CPUs, by all processes of a command, and of a clock."""

    cpu: float
    wall: float


def price_rows(
    ways: Mapping[str, Callable[[int], Sequence[str]]], few: int, many: int, rounds: int, *, until: str | None = None
) -> dict[str, list[Price]]:
    """What a row costs in each round, the ways in turns. A way makes the words of a command for so many rows: what
    starts and loads costs the same for `few` as for `many` of them, and is no part of the difference.

    until: a pattern of files in the working folder; a command is asked to stop when there is a new one."""
    found: dict[str, list[Price]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, words in ways.items():
            small, large = (_spend(until, *words(rows)) for rows in (few, many))
            scale = 1000 / (many - few)
            found[way].append(Price(scale * (large.cpu - small.cpu), scale * (large.wall - small.wall)))
    return found


def describe_prices(found: Mapping[str, Sequence[Price]]) -> str:
    """A line a way: medians, and how many rows a CPU second does beside the first way, round by round."""
    base, lines = next(iter(found.values())), []
    for way, prices in found.items():
        cpu, wall = (statistics.median(getattr(p, name) for p in prices) for name in ("cpu", "wall"))
        shares = sorted(100 * b.cpu / p.cpu for b, p in zip(base, prices, strict=True))
        beside = ", ".join(f"{share:.0f}" for share in shares)
        lines.append(f"{way}: {cpu:.3f} ms CPU a row, {wall:.3f} ms wall; rows per CPU second: {beside} %")
    return "\n".join(lines)


def _spend(until: str | None, *words: str) -> Price:
    """Seconds of a command and of the processes that it started."""
    begun, before = time.monotonic(), _count(until)
    stderr = None if until is None else subprocess.DEVNULL  # how to go on is of no use
    process = subprocess.Popen([sys.executable, "-m", "compress", *words], stdout=subprocess.DEVNULL, stderr=stderr)
    ended = 0
    while not ended:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if not ended and _count(until) > before:
            process.send_signal(signal.SIGTERM)
            ended, status, used = os.wait4(process.pid, 0)
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in ((0,) if until is None else (0, STOPPED)):
        raise SystemExit(f"compress {' '.join(words)}: exit code {process.returncode}")
    return Price(used.ru_utime + used.ru_stime, time.monotonic() - begun)


def _count(pattern: str | None) -> int:
    return 0 if pattern is None else len(list(Path().glob(pattern)))


def _printed(*words: str) -> str:
    """What a command prints on stdout."""
    done = subprocess.run([sys.executable, "-m", "compress", *words], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout

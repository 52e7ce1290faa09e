"""Several runs at once on one MLflow server that is killed in the middle and comes back: does anything stop or double?

    python tests/server_killed.py FOLDER [RUNS]

starts a real `mlflow server` on a fresh store, and RUNS processes that log what a training logs, without one. The
server gets SIGKILL; half of the runs end while it is away, the others after it is back. Then `compress runs sync` runs
twice. By hand, as it takes a minute: the tests do the same with a server that they play themselves.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from compress.tracking import Store, open_run
from compress.tracking.server import Server, _await_answer, _launch, choose_port

HOST, EXPERIMENT, PAUSE = "127.0.0.1", "killed", 0.05
AWAY, BACK = "away", "back"  # files that tell the trainings how the server is
MORE = 3.0
"""Seconds that trainings go on after the file that they wait for."""


def train(folder: Path, address: str, end: str) -> None:
    """Fake steps until the file `end` has been there a while; says how many, and the longest wait for the log."""
    run = open_run(folder, experiment=EXPERIMENT, name=folder.name, method="distill", store=Store(address), warn=print)
    run.params({"end": end})
    step, longest, over = 0, 0.0, 0.0
    while not over or time.monotonic() < over:
        if not over and (folder.parent / end).exists():
            over = time.monotonic() + MORE
        before = time.monotonic()
        run.metrics({"train/loss": 1 / (step + 1), "train/rate": step / 7}, step)
        longest = max(longest, time.monotonic() - before)
        step += 1
        time.sleep(PAUSE)
    run.metrics({"quality/accuracy": 0.9})
    ending = run.finish(seconds=5)
    print(f"{folder.name}: {step} steps, longest wait {1000 * longest:.1f} ms, {ending.left} records left", flush=True)


def start(store: Store, port: int) -> Server:
    server = _launch(store, HOST, port)
    _await_answer(server)
    return server


def stored(database: Path) -> list[tuple[str, str, int, int, int]]:
    """(name, status, points, different points, parameters) of every run."""
    points = "SELECT COUNT(*) FROM metrics m WHERE m.run_uuid = r.run_uuid"
    different = "SELECT COUNT(*) FROM (SELECT DISTINCT key, step FROM metrics m WHERE m.run_uuid = r.run_uuid)"
    params = "SELECT COUNT(*) FROM params p WHERE p.run_uuid = r.run_uuid AND p.key = 'end'"
    with sqlite3.connect(database, timeout=30) as connection:
        return connection.execute(
            f"SELECT r.name, r.status, ({points}), ({different}), ({params}) FROM runs r ORDER BY r.name"
        ).fetchall()


def ended(process: subprocess.Popen[str]) -> dict[str, int]:
    """Name of the run → its steps."""
    said = process.communicate()[0].strip()
    print(said)
    assert process.returncode == 0
    last = said.splitlines()[-1]
    return {last.split(":")[0]: int(last.split()[1])}


def main() -> None:
    """Raises AssertionError where something is missing or doubled."""
    folder, count = Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 4
    database = folder / "mlruns" / "mlflow.db"
    store = Store(f"sqlite:///{database}")
    store.client()
    port = choose_port(HOST, None)
    server = start(store, port)
    command = [sys.executable, __file__, "--train"]
    runs = []
    for number in range(count):
        words = [str(folder / f"run-{number}"), server.address, AWAY if number % 2 else BACK]
        runs.append(subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True))
    while len(stored(database)) < count or not all(points for _, _, points, *_ in stored(database)):
        time.sleep(0.2)
    os.killpg(server.process.pid, signal.SIGKILL)
    server.end()
    (folder / AWAY).touch()
    print(f"killed; in the store: {stored(database)}")
    steps: dict[str, int] = {}
    for process in runs[1::2]:
        steps |= ended(process)
    server = start(store, port)
    (folder / BACK).touch()
    for process in runs[::2]:
        steps |= ended(process)
    for _ in range(2):
        sync = [sys.executable, "-m", "compress", "runs", "sync", str(folder)]
        print(subprocess.run(sync, capture_output=True, text=True, check=True).stdout.strip())
        found = stored(database)
        assert [name for name, *_ in found] == sorted(steps), found
        for name, status, points, different, params in found:
            assert status == "FINISHED", found
            assert points == different == 2 * steps[name] + 1, (name, points, different, steps[name])
            assert params == 1, found
    server.end()
    print(f"{count} runs, {sum(2 * n + 1 for n in steps.values())} points: all there, each once")


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(Path(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        main()

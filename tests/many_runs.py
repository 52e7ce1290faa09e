"""A store of many finished runs, made in a second or two: what commands that read the store are timed on.

    python tests/many_runs.py FOLDER [RUNS]

makes FOLDER/mlruns/mlflow.db and times `compress compare --experiment many` on it, in a process of its own, and where
Chromium is installed the saved view of `compress ui`, in a window of 1920 x 1080: from opening the address until names
of runs show, and until a chart has points.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
import uuid
from pathlib import Path

import chromium
import numpy as np

from compress.tracking.listing import experiment_named
from compress.tracking.names import round_figure
from compress.tracking.store import Store
from compress.tracking.view import ensure_view
from evaluation.quality.pairing import ResampledMetric, stream

EXPERIMENT = "many"
NAMES_SHOW = "[...document.querySelectorAll('a')].filter(a => a.textContent.startsWith('student-')).length >= 5"
CHARTS_SHOW = "document.querySelectorAll('.js-plotly-plot .trace.scatter .point').length >= 100"
ROWS, RESAMPLES = 1000, 1000
CONTEXT = {
    "device": "a processor", "device_kind": "cpu", "threads": "2", "runtime": "torch 2.13.0, packed",
    "precision": "fp32", "latency_shape": "batch 1 x 128 tokens", "dataset": "opinions/test", "dataset_digest": "d" * 8,
    "rows": str(ROWS), "task": "classification", "metric": "accuracy", "contaminated": "no",
}  # fmt: skip


def fill(store: Store, runs: int, *, experiment: str = EXPERIMENT, seed: int = 0, answers: bool = True) -> list[str]:
    """Add `runs` finished runs with figures of a trade-off, and return their ids, the oldest first.

    One insert a table: the client of MLflow takes minutes for 1,000 runs. answers: with the file of resampled figures
    that `compress compare` pairs them by.
    """
    client = store.client()
    found = client.get_experiment_by_name(experiment)
    place = store.artifact_location(experiment)
    number = found.experiment_id if found else client.create_experiment(experiment, artifact_location=place)
    draw, now = random.Random(seed), int(time.time() * 1000) - runs * 1000
    random_ = np.random.default_rng(seed)
    rows: dict[str, list[tuple]] = {"runs": [], "latest_metrics": [], "metrics": [], "params": [], "tags": []}
    ids = []
    for index in range(runs):
        key = uuid.UUID(int=draw.getrandbits(128)).hex
        ids.append(key)
        when = now + index * 1000
        uri = f"{place}/{key}/artifacts"
        start = (key, f"student-{index}", "LOCAL", "compress distill", "", "user", "FINISHED", when, when + 500, "")
        rows["runs"].append((*start, "active", uri, int(number), None))
        values, params, tags = _run(draw, index)
        rows["latest_metrics"] += [(k, v, when, 0, 0, key) for k, v in values.items()]
        rows["metrics"] += [(k, v, when, key, 0, 0) for k, v in values.items()]
        rows["params"] += [(k, v, key) for k, v in params.items()]
        rows["tags"] += [(k, v, key) for k, v in {**tags, "compress.folder": f"runs/{index}"}.items()]
        if answers:
            _answers(Path(uri.removeprefix("file://")), values["quality/accuracy"], random_)
    assert store.database is not None
    with sqlite3.connect(store.database) as database:
        for table, records in rows.items():
            marks = ", ".join("?" * len(records[0]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", records)
    database.close()
    return ids


def _run(draw: random.Random, index: int) -> tuple[dict[str, float], dict[str, str], dict[str, str]]:
    """(figures, parameters, tags) of a model; larger ones are slower and, with luck, better."""
    layers = draw.randint(1, 12)
    share = layers / 12
    size, latency = 30 + 400 * share * draw.uniform(0.3, 1.0), 90 * share * draw.uniform(0.8, 1.2)
    accuracy = round((0.93 - 0.12 * (1 - share) ** 2 - abs(draw.gauss(0, 0.01))) * ROWS) / ROWS
    values = {
        "quality/accuracy": accuracy, "quality/accuracy_low": accuracy - 0.016,
        "quality/accuracy_high": accuracy + 0.016,
        "size/disk_mb": size, "size/params_m": size / 4, "speed/latency_p50_ms": latency,
        "speed/latency_p95_ms": latency * 1.2, "speed/throughput_sps": 1300 / latency, "speed/gflops": 22 * share,
        "vs_teacher/speedup": 90 / latency, "vs_teacher/size_ratio": 430 / size,
        "vs_teacher/quality_kept_pct": 100 * accuracy / 0.93, "vs_teacher/agreement_pct": 100 * accuracy,
    }  # fmt: skip
    values |= {f"train/figure_{n}": draw.random() for n in range(25)}
    params = {"method": "distill", "recipe": "distilbert", "student.layers": str(layers), "student.hidden": "768"}
    params |= {f"setting_{n}": str(draw.randint(0, 9)) for n in range(12)}
    tags = {f"measured.{k}": v for k, v in CONTEXT.items()}
    tags |= {"compress.method": "distill", "compress.role": "student", "mlflow.runName": f"student-{index}"}
    tags |= {"mlflow.note.content": "| | a |\n|---|---|\n" + "| figure | 1 |\n" * 60, "compress.key": f"key-{index}"}
    tags["compress.resampled"] = "resampled.json"
    return {k: round_figure(v) for k, v in values.items()}, params, tags


def _answers(folder: Path, accuracy: float, random: np.random.Generator) -> None:
    """Figures of resamples as `compress` leaves them; which rows are hard is the same for all."""
    spread = (accuracy * (1 - accuracy) / ROWS) ** 0.5
    common = np.random.default_rng(1).standard_normal(RESAMPLES)
    figures = accuracy + spread * (0.8 * common + 0.6 * random.standard_normal(RESAMPLES))
    data = f"{CONTEXT['dataset_digest']}/test"
    folder.mkdir(parents=True)
    said = ResampledMetric("accuracy", data, ROWS, accuracy, figures, stream(ROWS))
    (folder / "resampled.json").write_text(said.text(), encoding="utf-8")


def main() -> None:
    """Make the store, and say how long `compress compare` takes for it."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    store = Store(f"sqlite:///{(folder / 'mlruns' / 'mlflow.db').absolute()}")
    began = time.perf_counter()
    fill(store, count)
    print(f"{count} runs in {time.perf_counter() - began:.1f} s")
    command = [sys.executable, "-m", "compress", "compare", "--experiment", EXPERIMENT, "--json"]
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run([*command, "--tracking-uri", store.uri], capture_output=True, text=True, check=True)
        rows = json.loads(done.stdout)["rows"]
        best = sum(row["frontier"] == "on it" for row in rows)
        print(f"compress compare: {len(rows)} rows, {best} on the frontier, {time.perf_counter() - began:.2f} s")
    if chromium.find() is not None:
        _view(store, folder)


def _view(store: Store, folder: Path) -> None:
    """Openings with an empty profile of the browser each, by one server; then one more with the last profile."""
    ensure_view(store.client(), experiment_named(store.client(), EXPERIMENT).experiment_id, "quality/accuracy")
    command = [sys.executable, "-m", "compress", "ui", "--experiment", EXPERIMENT, "--tracking-uri", store.uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = server.stdout.readline().strip()
        for number, profile in enumerate((1, 2, 3, 3), 1):
            with chromium.browsing(folder / f"profile-{profile}") as page:
                page.resize(1920, 1080)
                began = time.perf_counter()
                page.open(link)
                passed = []
                for what in (NAMES_SHOW, CHARTS_SHOW):
                    page.wait_for(what)
                    passed.append(time.perf_counter() - began)
                known = " (files in the browser's cache)" if number > profile else ""
                print(
                    f"saved view, opening {number}{known}: runs {passed[0]:.1f} s, charts {passed[1]:.1f} s", flush=True
                )
                page.screenshot(folder / f"view-{number}.png")
        server.terminate()


if __name__ == "__main__":
    main()

"""How long `compress runs export` and `compress runs import` take for a store of many runs.

    python benchmarks/archive.py [--runs 1000] [--folder FOLDER] [--keep] [--json]

Makes a sqlite store with that many finished runs. Each has 30 metrics, two of them curves of 20 points, 30 parameters,
10 tags, a data set, three small artifacts, and a logged model of two files with 10 metrics. Making it takes a few
minutes and is not timed. Then each command runs once, as a process of its own: export into a folder, import into a
store that is made by the import. Seconds are wall time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param

from compress.tracking.store import Store

POINTS = 20  # of each of the two curves


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="in the store (default 1000)")
    parser.add_argument("--folder", type=Path, help="where; a temporary folder when not given")
    parser.add_argument("--keep", action="store_true", help="use the store that an earlier call left in --folder")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="archive-") as temporary:
        folder = (args.folder or Path(temporary)).resolve()
        source, target = (Store(f"sqlite:///{folder / name / 'mlflow.db'}") for name in ("from", "to"))
        if not (args.keep and (folder / "from").is_dir()):
            fill(source, args.runs)
        archive = folder / f"archive-{time.time_ns()}"
        found = {"runs": args.runs, "export": timed("export", archive, source)}
        found["import"] = timed("import", archive, target)
    if args.json:
        print(json.dumps(found))
    else:
        print(f"{args.runs} runs: export {found['export']:.1f} s, import {found['import']:.1f} s")
    return 0


def timed(command: str, archive: Path, store: Store) -> float:
    """Seconds of `compress runs export` or `import`."""
    words = [sys.executable, "-m", "compress", "runs", command, str(archive), "--tracking-uri", store.uri]
    began = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def fill(store: Store, runs: int) -> None:
    """Log the runs, with MLflow's own client."""
    client = store.client()
    experiment = client.create_experiment("many", artifact_location=store.artifact_location("many"))
    for number in range(1, runs + 1):
        _log(client, experiment, number)


def _log(client: MlflowClient, experiment: str, number: int) -> None:
    tags = {f"compress.tag_{n}": f"value {n} of run {number}" for n in range(10)}
    run = client.create_run(experiment, start_time=number * 1000, run_name=f"run-{number}", tags=tags)
    key, now = run.info.run_id, number * 1000
    values = [Metric(f"quality/figure_{n}", number / (n + 1), now, 0) for n in range(28)]
    curves = [Metric(f"train/curve_{n}", step / (n + 2), now + step, step) for n in range(2) for step in range(POINTS)]
    client.log_batch(key, metrics=values + curves, params=[Param(f"setting_{n}", f"{n}") for n in range(30)])
    client.log_inputs(key, [DatasetInput(Dataset("reviews", "0123456789", "local", "{}"), [InputTag("split", "test")])])
    place = Path(run.info.artifact_uri.removeprefix("file://"))
    write(place, {"report.json": '{"rows": 100}', "plots/curve.svg": "<svg/>" * 500, "recipe.yaml": "model: x\n"})
    model = client.create_logged_model(experiment, name=f"model-{number}", source_run_id=key, model_type="distill")
    write(Path(model.artifact_location.removeprefix("file://")), {"config.json": "{}", "weights": "w" * 10_000})
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(key, [LoggedModelOutput(model.model_id, step=0)])
    client.log_batch(key, metrics=[Metric(m.key, m.value, now, 0, model_id=model.model_id) for m in values[:10]])
    client.set_terminated(key, end_time=now + 500)


def write(folder: Path, files: dict[str, str]) -> None:
    """Text files below a folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


if __name__ == "__main__":
    sys.exit(main())

"""A teacher and its students with figures like real ones, for looking at the page."""

from __future__ import annotations

import math
from pathlib import Path

from compress.tracking import Store, open_run

ROWS = (
    # name, method, role, layers, parameters in millions, MB, p50 ms, accuracy
    ("teacher-12-layers", "finetune", "teacher", 12, 109.5, 438.0, 92.0, 0.927),
    ("student-6-layers", "distill", "student", 6, 66.4, 265.6, 46.5, 0.911),
    ("hard-labels-6-layers", "distill", "control", 6, 66.4, 265.6, 46.4, 0.893),
    ("shared-128", "share", "student", 12, 11.7, 46.8, 93.5, 0.899),
)


def log_toy_runs(folder: Path, store: Store, experiment: str, rows: int = len(ROWS)) -> None:
    """Logs the first `rows` of them, below `folder`."""
    _, _, _, _, _, teacher_mb, teacher_ms, teacher_accuracy = ROWS[0]
    for name, method, role, layers, params, mb, ms, accuracy in ROWS[:rows]:
        final = {
            "quality/accuracy": accuracy,
            "quality/accuracy_low": accuracy - 0.01,
            "quality/accuracy_high": accuracy + 0.01,
            "size/disk_mb": mb,
            "size/params_m": params,
            "speed/latency_p50_ms": ms,
            "speed/latency_p95_ms": ms * 1.15,
            "speed/throughput_sps": 1300 / ms,
            "vs_teacher/quality_kept_pct": 100 * accuracy / teacher_accuracy,
            "vs_teacher/size_ratio": teacher_mb / mb,
            "vs_teacher/speedup": teacher_ms / ms,
            "vs_teacher/agreement_pct": 100 - 300 * (teacher_accuracy - accuracy),
        }
        model = folder / name / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        with open_run(
            folder / name,
            experiment=experiment,
            name=name,
            method=method,
            role=role,
            store=store,
            command=f"compress distill --recipe {name}",
            interval=0.2,
        ) as run:
            run.params({"method": method, "student.layers": layers, "device": "cpu", "threads": 2, "seed": 1})
            run.dataset("opinions", "0123456789abcdef", "embedded:opinions", "evaluation")
            for step in range(0, 100, 5):
                curves = {"train/loss": 0.7 * math.exp(-step / 30) + 0.1, "val/accuracy": accuracy - 0.3 / (step + 1)}
                run.metrics(curves, step)
            run.note(f"# {name}\n\n| quality | MB | p50 ms |\n|---|---|---|\n| {accuracy} | {mb} | {ms} |")
            run.metrics(final)
            run.model(model, name=name, model_type=method, metrics=final, dataset=("opinions", "0123456789abcdef"))

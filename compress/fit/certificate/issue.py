"""The end of a fit: the best model measured once more, on rows that nothing was chosen by, and its certificate."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.contracts import Measurement
from compress.data.tables.table import fingerprint
from compress.fit.certificate import document as certificate
from compress.fit.make.evaluator import Judged, Timing
from compress.measure.models import CostPlan, Measured, Subject, measure
from compress.modelfolder import folder as modelfolder
from compress.run.publish import log_measured
from compress.stages.shared.stage import settings_for
from compress.storage import atomic
from compress.tracking import TrackedRun

if TYPE_CHECKING:
    from compress.fit.run import Fit


def certify(fit: Fit, best: Judged, model: Path, log: TrackedRun) -> dict[str, Any]:
    """Measure the exported file on held-out rows; the certificate goes into its folder, the card and MLflow."""
    fit.console.note(f"certifying {best.name} on {len(fit.table.split('test')):,} test rows")
    runtime = fit.judge.runtime(model)
    timing = certificate.latency(fit.judge, model)
    measured = _measured(fit, model, runtime, timing)
    log_measured(
        log, fit.console, measured, table=fit.table, method="fit", told=(),
        child=lambda role: fit.child(log, fit.path / "parent", role, "teacher"),
    )  # fmt: skip
    deployed = [model / certificate.ONNX] if fit.serving.writes else sorted(model.glob("*.safetensors"))
    found = certificate.issue(
        model,
        fit.source,
        fit.bounds,
        fit.serving,
        measured,
        timing,
        labelled=fit.labelled,
        deployed=deployed,
        seen=_seen(fit),
    )
    meta = modelfolder.inspect(model).meta
    lines = certificate.sentences(found)
    meta = meta.model_copy(update={"notes": (*meta.notes, *(f"certificate: {line}" for line in lines))})
    modelfolder.annotate(model, meta, beside={certificate.FILE: json.dumps(found, indent=2).encode()})
    atomic.write_json(fit.path / certificate.FILE, found)
    log.artifact(fit.path / certificate.FILE)
    log.tags({"compress.certificate": found["status"]})
    log.metrics({"fit/speedup": found["speedup"], "fit/size_mb": found["size_mb"]})
    return found


def _measured(fit: Fit, model: Path, runtime: Any, timing: Timing) -> list[Measured]:
    subjects = [
        Subject("parent", fit.source, "teacher", runtime="torch"),
        Subject(fit.path.name, model, "student", runtime=runtime),
    ]
    measured = measure(
        subjects, fit.table.split("test"), task=fit.table.task, dataset=f"{fit.table.called}/test",
        digest=fit.table.fingerprint, max_length=fit.max_length,
        cost=CostPlan(batch=fit.wanted.batch, length=fit.length, repeats=20, seconds=4.0),
        settings=settings_for(fit.recipe, fit.table), device=fit.options.device,
        held=fit.table.splits.get("validation"), say=fit.console.note,
    )  # fmt: skip
    ours = measured[1].measurement
    values: Mapping[str, float] = {
        **ours.values, "speed/latency_p50_ms": timing.p50, "speed/latency_p95_ms": timing.p95,
    }  # fmt: skip
    context = {**ours.context, "contaminated": "no" if timing.quiet else "yes"}
    return [measured[0], dataclasses.replace(measured[1], measurement=Measurement(values, context))]


def _seen(fit: Fit) -> bool:
    """Whether the test rows are those that plans were chosen on: data without a test split of its own."""
    t = fit.table
    digests = {fingerprint({"rows": t.split(n)}, t.task, t.label_names) for n in ("validation", "test")}
    return len(digests) == 1

"""The end of a fit: the best model measured once more, on the test rows, and its certificate."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from compress.contracts import Measurement
from compress.data.text.texts import find_overlap
from compress.fit.certificate import document as certificate
from compress.fit.journal import Journal
from compress.fit.make.bench import Bench
from compress.fit.make.evaluator import Evaluation, Timing
from compress.fit.request.case import Case
from compress.measure.cost import CostPlan
from compress.measure.measured_model import MeasuredModel
from compress.measure.models import measure
from compress.measure.subject import Subject
from compress.run.publish import log_measured
from compress.stages.shared.labelled_data import settings_for


def certify(case: Case, bench: Bench, journal: Journal, best: Evaluation, model: Path) -> dict[str, Any]:
    """Measure the exported file on the test rows; the certificate goes into its folder, the card and MLflow."""
    log, path = journal.log, journal.path
    case.console.note(f"certifying {best.name} on {len(case.table.split('test')):,} test rows")
    runtime = bench.evaluator.runtime(model)
    timing = certificate.latency(bench.evaluator, model, best.plan)
    measured = _measured(case, path.name, model, runtime, timing)
    log_measured(
        log, case.console, measured, table=case.table, method="fit", told=(), reference="parent",
        child=lambda role: journal.child(path / "parent", "parent", role),
    )  # fmt: skip
    deployed = [model / certificate.ONNX] if bench.serving.writes else sorted(model.glob("*.safetensors"))
    found = certificate.issue(
        model,
        case.source,
        case.bounds,
        bench.serving,
        measured,
        timing,
        labelled=case.labelled,
        deployed=deployed,
        shared=int(find_overlap(case.table.split("test"), [case.table.split("validation")], exact=True).sum()),
    )
    certificate.write(model, found)
    log.artifact(model / certificate.CERTIFICATE)
    log.tags({"compress.certificate": found["status"]})
    log.metrics({"fit/size_mb": found["size_mb"], **({"fit/speedup": timing.speedup} if timing.is_measured else {})})
    return found


def _measured(case: Case, name: str, model: Path, runtime: Any, timing: Timing) -> list[MeasuredModel]:
    subjects = [
        Subject("parent", case.source, "teacher", runtime="torch"),
        Subject(name, model, "student", runtime=runtime),
    ]
    measured = measure(
        subjects, case.table.split("test"), task=case.table.task, label_names=case.table.label_names,
        dataset=f"{case.table.display_name}/test",
        digest=case.table.measured_fingerprint, max_length=case.max_length,
        cost=CostPlan(
            batch=case.wanted.batch, length=None if case.texts else case.length,
            texts=case.texts.sample if case.texts else None, repeats=20, seconds=4.0,
        ),
        settings=settings_for(case.recipe, case.table), device=case.options.device,
        held=case.table.splits.get("validation"), say=case.console.note,
        watch=case.console.slow_progress,
    )  # fmt: skip
    if not timing.is_measured:  # a prediction or an estimate is not logged: what `measure` found here is
        return measured
    ours = measured[1].measurement
    values, context = {**ours.values, **timing.speeds()}, {**ours.context, "contaminated": "no"}
    return [measured[0], dataclasses.replace(measured[1], measurement=Measurement(values, context))]

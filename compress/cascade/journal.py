"""The tracked run of a cascade, or of a model with early exits: its certificate and its figures beside the parent's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from compress.cascade.certificate import METHODS, MeasuredCascade, has_exits, sentences
from compress.cascade.request import CascadeRequest
from compress.modelfolder.meta import CERTIFICATE
from compress.run.publish import log_measured
from compress.tracking import TrackedRun, open_child

OpenRun = Callable[[str], TrackedRun]
"""Opens the run of a method, in a folder of its own: a model folder holds nothing but the model."""


def name_run_folder(output: Path) -> Path:
    """Where the run of the model folder `output` is kept."""
    return output.with_name(f"{output.name}-run")


def log_certified(
    request: CascadeRequest, output: Path, found: Mapping[str, Any], measured: MeasuredCascade, open_run: OpenRun
) -> dict[str, Any]:
    """Print what was measured, with the certificate, and log it. output: the model's folder, which holds the figures.
    found: the certificate. Returns what the document of --json says of it."""
    ours = measured.cascade
    models = [measured.parent, replace(ours, subject=replace(ours.subject, folder=output))]
    method = METHODS[found["format"]]
    with open_run(method) as log:
        log_measured(
            log, request.console, models, table=request.table, method=method, told=(), reference="parent",
            child=lambda role: open_child(
                log, log.folder / "parent", name=f"{log.name}/parent", method=role, role=role,
                quality=f"quality/{ours.metric}", warn=request.console.warn, tags={"compress.parent_run": log.key},
            ),
            more=sentences(found), annotated=True,
        )  # fmt: skip
        log.params(_list_params(found))
        shares = enumerate((stage["share"] for stage in found["stages"]), 1)
        log.metrics({f"cascade/stage_{place}_answered_pct": 100 * share for place, share in shares})
        log.tags({"compress.certificate": found["status"]})
        log.artifact(output / CERTIFICATE)
    request.console.result(f"wrote {output}")
    return {"run": str(log.folder), "models": [m.as_json() for m in models], "reference": "parent"}


def _list_params(found: Mapping[str, Any]) -> dict[str, Any]:
    """What was joined, and how it was chosen."""
    stages = found["stages"]
    params = {key: value for key, value in found["bounds"].items() if value is not None}
    params["thresholds"] = ", ".join(f"{s['threshold']:.6g}" for s in stages if s["threshold"] is not None)
    if has_exits(found):
        layers = ", ".join(str(stage["layer"]) for stage in stages[:-1])
        return {**params, "models": found["parent"]["name"], "exit_layers": layers}
    return {**params, "models": ", ".join(s["name"] for s in stages)}

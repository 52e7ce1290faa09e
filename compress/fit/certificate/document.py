"""What a model was measured to be, in its own folder: certificate.json. Written of the exported file, re-checked by
`compress verify`."""

from __future__ import annotations

import datetime
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import compress
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError, format_count
from compress.fit.certificate.schema import CertificateContent
from compress.fit.cost.serving import Serving
from compress.fit.make.evaluator import STEADY, Evaluator, Timing
from compress.fit.plan.plans import Plan
from compress.fit.request.bounds import Bounds
from compress.fit.target.target_file import explain_invalid
from compress.measure.measured_model import MeasuredModel
from compress.modelfolder import folder as modelfolder
from compress.modelfolder import private
from compress.modelfolder.cascade import depends_on_texts
from compress.modelfolder.meta import CERTIFICATE
from compress.modelfolder.open import CONFIG, file_digest
from compress.onnx.gpu_session import computed_in
from compress.onnx.model_file import FILE as ONNX
from compress.onnx.runtimes import PROVIDERS, package, versions
from compress.predict.predictor import Predictor
from compress.report.certified import ENDS, format_ends, format_metric, read_ends
from compress.report.rows import format_difference, in_percent, name_agreement, title
from compress.storage import safe
from compress.training.precision import serving_precision
from evaluation.cost.device import describe

VERSION, OF_TEXTS = 1, 2
"""Formats: the latency of sequences of one length, and of the texts of the data."""
HASHED = (ONNX, "model.safetensors", private.WEIGHTS, CONFIG, private.FILE, "tokenizer.json")
REPEATS, SECONDS, ATTEMPTS = 60, 10.0, 5
"""Times that a latency is measured before the machine counts as busy."""
PACE = 1.02
"""Over what the parent usually takes, what it may take where no other time is asked for: a machine's clock drifts by
more, and a bound would be met or missed by chance."""
CERTIFIED, UNCERTIFIED, INFEASIBLE = "certified", "uncertified", "infeasible"
PREDICTED = "predicted"
"""All bounds are met, that of the latency by what is predicted for a target."""
NOT_MEASURED = "the latency is predicted for {}, not yet measured there"


def latency(evaluator: Evaluator, folder: Path, plan: Plan) -> Timing:
    """Of the deployed model of a plan, beside the parent."""
    predictor = Predictor(folder, runtime=evaluator.runtime(folder), **evaluator.how)
    return evaluator.find_timing(plan, predictor, REPEATS, SECONDS, ATTEMPTS, PACE)


def files(folder: Path) -> dict[str, dict[str, Any]]:
    """name → sha256 and bytes of what a folder answers with."""
    there = (folder / name for name in HASHED)
    return {p.name: {"sha256": file_digest(p), "bytes": p.stat().st_size} for p in there if p.is_file()}


def issue(
    folder: Path,
    parent: Path,
    bounds: Bounds,
    serving: Serving,
    measured: Sequence[MeasuredModel],
    timing: Timing,
    *,
    labelled: bool,
    deployed: Sequence[Path],
    shared: int = 0,
) -> dict[str, Any]:
    """The content of the certificate. measured: the parent's figures and the model's, on the test rows.  labelled:
    False where the parent's answers stand for labels.  shared: test rows that are validation rows too."""
    theirs, ours = (m.measurement for m in measured)
    metric = measured[1].metric
    told = {key: x for key, x in ours.values.items() if math.isfinite(x)}  # JSON has no others
    value = read_ends(told, f"quality/{metric}")
    difference = read_ends(told, f"vs_teacher/{metric}_difference")
    agreement = read_ends(told, "vs_teacher/agreement_pct")
    mb = sum(p.stat().st_size for p in deployed) / 1e6
    drop = None if difference["value"] is None else -100 * difference["value"]
    over = bounds.over(mb, timing.certain, drop)
    why = [] if timing.quiet else [BUSY]
    rows = int(ours.context["rows"])
    if 0 < rows <= 2 * shared:
        why.append(_describe_shared(shared, rows))
    if value["value"] is None or (bounds.max_drop is not None and drop is None):
        why.append(f"{title(metric or 'the metric')} is undefined on these rows")
    status, why = judge(over, why)
    if timing.predicted is not None and status != INFEASIBLE:
        status = PREDICTED if status == CERTIFIED else status
        why = [*why, NOT_MEASURED.format(timing.predicted.target)]
    return {
        "format": VERSION if serving.texts is None else OF_TEXTS,
        "status": status,
        "why": why,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "bounds": bounds.as_json(),
        "deployed": [p.name for p in deployed],
        "files": files(folder),
        "size_mb": mb,
        "latency": {**asdict(timing), "ms": timing.certain, **_describe_shape(folder, serving)},
        "speedup": timing.speedup if timing.predicted is None else None,
        "quality": {"metric": metric, **value, "labels": "given" if labelled else "the parent's answers"},
        "difference": {**difference, "p_value": told.get("vs_teacher/p_value")},
        "agreement_pct": agreement,
        "rows": rows,
        "shared_rows": shared,
        "dataset": ours.context["dataset"],
        "dataset_digest": ours.context["dataset_digest"],
        "parent": {
            "name": parent.name,
            "fingerprint": modelfolder.fingerprint(parent),
            "size_mb": theirs.values.get("size/disk_mb"),
            "quality": theirs.values.get(f"quality/{metric}"),
        },
        "runtime": serving.runtime,
        "device": dict(timing.predicted.device) if timing.predicted else describe(serving.device),
        "serving_precision": _find_precision(serving),
        "versions": {
            "compress": compress.__version__,
            "python": platform.python_version(),
            "torch": versions()["torch"],
            package(serving.runtime): versions()[serving.runtime],
        },
    }


def judge(over: list[str], why: list[str]) -> tuple[str, list[str]]:
    """(status, its reasons). over: the bounds that are not met.  why: what keeps the rest from being certain."""
    return (INFEASIBLE if over else UNCERTIFIED if why else CERTIFIED), over or why


def write(folder: Path, found: Mapping[str, Any]) -> None:
    """Into a model's folder and its card, in place of an earlier one."""
    meta = modelfolder.inspect(folder).meta.with_certificate(sentences(found))
    modelfolder.annotate(folder, meta, beside={CERTIFICATE: json.dumps(found, indent=2).encode()})


def _describe_shape(folder: Path, serving: Serving) -> dict[str, Any]:
    """What the latency is of: so many tokens, or the texts, with the tokens and sequences that each call has in the
    model's own tokenizer."""
    if serving.texts is None:
        return {"batch": serving.batch, "length": serving.length}
    texts = serving.texts.in_tokenizer(Tokenizer.load(folder))
    return {**asdict(texts.sample.shape), "tokens": texts.tokens.tolist(), "sequences": texts.sequences.tolist()}


BUSY = (
    "the machine was busy: another process used the processor, timings spread by more than 10 %, or the parent was "
    "slower than before"
)
AGAIN = "fit the model again"
SLOW = "the machine was slower than when the target was measured"


def read(folder: Path) -> Mapping[str, Any]:
    """Raises UserError where a folder has none, or one of another format or with a wrong key."""
    path = folder / CERTIFICATE
    if depends_on_texts(folder):
        raise UserError(
            "the certificate of a cascade or of early exits cannot be re-checked", where=str(folder),
            do=f"measure it again: compress evaluate {folder} --against PARENT --data DATA",
        )  # fmt: skip
    if not path.is_file():
        raise UserError(f"no {CERTIFICATE} in this folder", where=str(folder), do="compress fit writes one")
    found = safe.read_json(path, 1 << 20)
    if found.get("format") not in (VERSION, OF_TEXTS):
        raise UserError("not a valid certificate, or one of another version", where=str(path), do=AGAIN)
    try:
        CertificateContent.model_validate(found)
    except ValidationError as error:
        raise explain_invalid(error, path, CertificateContent, AGAIN) from None
    return found


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What it says, for people."""
    latency, difference = found["latency"], found["difference"]
    quality = format_metric(found["quality"], found["quality"]["metric"])
    lines = [f"{found['status']}: " + ("; ".join(found["why"]) or "all bounds are met")]
    lines.append(f"size {found['size_mb']:.2f} MB: {', '.join(found['deployed'])}")
    lines.append(
        f"latency {latency['ms']:.2f} ms ({_describe_latency(latency)}) for "
        f"{_name_shape(latency)} in {found['runtime']}, {format_count(int(found['device']['threads']), 'thread')}"
        + _describe_speedup(found["speedup"], latency["quiet"])
    )
    lines.append(f"{quality} on {found['rows']:,} rows of {found['dataset']}")
    shared = _describe_shared(found.get("shared_rows", 0), found["rows"])
    if found.get("shared_rows") and shared not in found["why"]:
        lines[-1] += f"; {shared}"
    if difference["value"] is not None:
        p = "" if difference["p_value"] is None else f", exact sign test p = {difference['p_value']:.2g}"
        metric = found["quality"]["metric"]
        apart = format_difference(metric, *(difference[key] for key in ENDS)) + " points" * in_percent(metric)
        lines.append(f"against the parent {apart}{p}")
    if found["agreement_pct"]["value"] is not None:
        name = name_agreement(found["quality"]["metric"], "the parent")
        lines.append(f"{name}: {format_ends(found['agreement_pct'], 1)} %")
    return lines


def _describe_shared(shared: int, rows: int) -> str:
    return f"{shared:,} of the {rows:,} test rows are also validation rows, which were used to select plans"


def _describe_latency(latency: Mapping[str, Any]) -> str:
    texts, busy = latency.get("texts"), "estimated on a busy machine"
    if is_slow(latency):
        busy = "estimated for the speed that the machine had when the target was measured"
    rounds = f", {latency['repeats']} rounds{_again(latency)}"
    about = latency.get("predicted")
    if about is not None:
        low, high = (latency["ms"] * about["margin"] ** power for power in (-1, 1))
        part = f"; {about['tokenization']:.2f} of it tokenization, measured here" if about["tokenization"] else ""
        return f"predicted for {about['target']}, not yet measured there; 95 % interval {low:.2f} to {high:.2f}{part}"
    if texts is None:
        how = "median" if latency["quiet"] else busy
        kit = latency.get("kit", {}).get("tokenization")
        part = f"; {kit:.2f} of it tokenization, measured where the model was fitted" if kit else ""
        return f"{how}{part}; median {latency['p50']:.2f}, p95 {latency['p95']:.2f}{rounds}"
    how = "mean" if latency["quiet"] else f"mean, {busy}"
    return (
        f"{how}; {texts['tokenization']:.2f} of it tokenization; median {texts['p50']:.2f}, p95 {texts['p95']:.2f} "
        f"over the texts{rounds}"
    )


def _describe_speedup(speedup: float | None, quiet: bool) -> str:
    """quiet: False where it was estimated, as the latency was."""
    if speedup is None:
        return ""
    if quiet:
        return f"; {speedup:.2f}x the speed of the float parent"
    return f"; about {speedup:.1f}x the speed of the float parent, also estimated"


def is_slow(latency: Mapping[str, Any]) -> bool:
    """Whether a kit found the machine slower than when the target was measured."""
    return ((latency.get("kit") or {}).get("pace") or 1.0) > STEADY


def _name_shape(latency: Mapping[str, Any]) -> str:
    if "length" in latency:
        return f"{latency['batch']} x {latency['length']} tokens"
    mean = sum(latency["tokens"]) / sum(latency["sequences"])
    return f"{latency['batch']} x texts of {latency['data']} ({mean:.1f} tokens on average)"


def _again(latency: Mapping[str, Any]) -> str:
    times = latency.get("attempts", 1)
    if times == 1 or not latency["quiet"]:
        return ""
    if "kit" in latency:
        return f", the steadiest of {times} measurements"
    return f", chosen from {times} measurements because the parent was closest to its usual time"


def _find_precision(serving: Serving) -> str:
    """Of what is computed in floats."""
    precision = serving_precision("auto", serving.device)
    return computed_in(serving.runtime, precision) if serving.runtime in PROVIDERS else precision

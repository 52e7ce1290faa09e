"""The statements of a certificate, each held against what is found: files, size, latency, quality."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from compress.errors import UserError, format_count
from compress.fit.certificate import document as certificate
from compress.modelfolder.open import file_digest, require_as_written
from compress.report.rows import format_figure, title
from evaluation.cost.latency import Latency

Verdict = Literal["holds", "fails", "open"]
SAME = ("device", "device_kind", "threads", "cpu_flags", "isa")
"""What must be equal for a device to be the one of the certificate, where it is known: a kit has no `isa`, which is
torch's."""
SLOWER = 1.15
"""Times what was certified, that a median may be on the same device where no bound was given."""
NEW_KIT = "run a new kit there: compress verify MODEL --kit check.pyz"
BUSY_NOW = (
    "the latency is not known: another process used the processor, or timings spread by more than 10 %; run "
    "`compress verify` again on an idle machine"
)


@dataclass(frozen=True)
class CheckedStatement:
    """One of its statements. verdict: open where it could not be judged, and the certificate is not re-checked."""

    what: str
    verdict: Verdict
    why: str


def check_files(folder: Path, found: Mapping[str, Any]) -> CheckedStatement:
    """Every file that was hashed is there, unchanged, and so is the certificate itself."""
    for name, row in found["files"].items():
        path = folder / Path(name).name
        if not path.is_file():
            return CheckedStatement("files", "fails", f"{name} is missing")
        if file_digest(path) != row.get("sha256"):
            return CheckedStatement("files", "fails", f"{name} is not the certified file")
    try:
        require_as_written(folder)
    except UserError as error:
        return CheckedStatement("files", "fails", error.what)
    return CheckedStatement("files", "holds", f"{len(found['files'])} files are unchanged")


def check_size(folder: Path, found: Mapping[str, Any]) -> CheckedStatement:
    """The deployed files take what is said, and no more than was asked for."""
    mb = sum((folder / Path(name).name).stat().st_size for name in found["deployed"]) / 1e6
    bound = found["bounds"]["max_mb"]
    if abs(mb - found["size_mb"]) > 1e-9:
        return CheckedStatement("size", "fails", f"{mb:.3f} MB, certified: {found['size_mb']:.3f}")
    if bound is not None and mb > bound:
        return CheckedStatement("size", "fails", f"{mb:.3f} MB, bound: {bound:g}")
    return CheckedStatement("size", "holds", f"{mb:.3f} MB" + ("" if bound is None else f", bound: {bound:g}"))


def check_latency(found: Mapping[str, Any], ours: Latency, here: Mapping[str, str]) -> CheckedStatement:
    """ours: measured now.  here: the device, as `describe` has it."""
    same = all(found["device"].get(key, here.get(key)) == here.get(key) for key in SAME)
    where = "the certified device" if same else "a different device or number of threads"
    bound = found["bounds"]["max_ms"]
    said = f"{ours.p50:.2f} ms on {where}, certified: {found['latency']['ms']:.2f}"
    said += "" if bound is None else f", bound: {bound:g}"
    if ours.contaminated:
        return CheckedStatement("latency", "open", f"{said}; {BUSY_NOW}")
    if bound is None and not same:
        return CheckedStatement("latency", "holds", f"{said}; the certificate has no latency bound")
    if ours.p50 <= (SLOWER * found["latency"]["ms"] if bound is None else bound):
        return CheckedStatement("latency", "holds", said)
    if not found["latency"]["quiet"]:  # an estimate is no claim that could fail
        again = NEW_KIT if found["latency"].get("kit") else "run `compress fit` again on an idle machine"
        return CheckedStatement("latency", "open", f"{said}, which was estimated on a busy machine; {again}")
    return CheckedStatement("latency", "fails", said)


def check_kit_latency(found: Mapping[str, Any]) -> CheckedStatement:
    """Of a certificate whose latency a kit has just measured."""
    latency, bound = found["latency"], found["bounds"]["max_ms"]
    device, threads = (found["device"][key] for key in ("device", "threads"))
    said = "estimated: " if certificate.is_slow(latency) else ""
    said += f"{latency['ms']:.2f} ms on {device}, {format_count(int(threads), 'thread')}"
    predicted = latency["kit"]["predicted_ms"]
    if predicted is not None:
        said += f", predicted: {predicted:.2f} ({100 * (latency['ms'] / predicted - 1):+.1f} %)"
    said += "" if bound is None else f", bound: {bound:g}"
    pace = latency["kit"].get("pace")
    if pace is not None:
        change = round(100 * (pace - 1))
        how = f"{abs(change)} % {'slower' if change > 0 else 'faster'} than" if change else "as fast as"
        said += f"; the machine was {how} when the target was measured"
    if not latency["quiet"]:
        said += f"; {certificate.BUSY}" if certificate.BUSY in found["why"] else ""
        return CheckedStatement("latency", "open", f"{said}; when the machine is idle, {NEW_KIT}")
    return CheckedStatement("latency", "fails" if bound is not None and latency["ms"] > bound else "holds", said)


def check_quality(found: Mapping[str, Any], digest: str, value: float) -> CheckedStatement:
    """value: the main metric, measured now.  digest: of the data it was measured on."""
    q = found["quality"]
    metric, low, high = q["metric"], q["low"], q["high"]
    if q["value"] is None or not math.isfinite(value):
        return CheckedStatement("quality", "open", f"{title(metric)} is undefined on these rows")
    said = f"{title(metric)} {format_figure(metric, value)}, certified: {format_figure(metric, q['value'], low, high)}"
    if digest != found["dataset_digest"]:
        return CheckedStatement("quality", "open", f"{said} on different data; give the data of the certificate")
    if low is None or high is None:
        return CheckedStatement("quality", "open", f"{said}, which has no interval")
    return CheckedStatement("quality", "holds" if low <= value <= high else "fails", said)

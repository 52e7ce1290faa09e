"""A certificate's latency, measured on the machine that serves: a kit that times the file there, and what it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from compress.console import Console
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.errors import ExitCode, UserError
from compress.fit.certificate import document as certificate
from compress.fit.certificate.checks import NEW_KIT, check_files
from compress.fit.make.evaluator import STEADY
from compress.fit.request.bounds import Bounds
from compress.fit.target.kit import SUFFIX, build_model_kit, write_whole
from compress.fit.target.target_file import Device, Milliseconds, read_kit_file
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.resolve import resolve
from compress.storage import atomic

SHAPE_KEYS = ("batch", "length", "data", "digest", "rows", "tokens", "sequences")


class KitLatency(BaseModel):
    """Milliseconds of a call of the certificate's shapes, on average, without tokenization."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    p50: Milliseconds
    p95: Milliseconds
    minimum: Milliseconds
    repeats: Annotated[int, Field(gt=0)]
    cpu_share: float
    spread: float
    quiet: bool
    attempts: Annotated[int, Field(gt=0)]
    whole: Milliseconds | None = None
    """Of the model of the parent's shape that the target was measured with, in turn."""


class KitMeasurement(BaseModel):
    """What a kit of a fitted model wrote."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1]
    sha256: str
    runtime: str
    version: str
    shapes: tuple[tuple[int, int], ...]
    device: Device
    latency: KitLatency


def list_shapes(latency: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(sequences, tokens of each) of the calls that a certificate's latency is the mean of."""
    if "length" in latency:
        return [(int(latency["batch"]), int(latency["length"]))]
    return [(int(n), round(t / n)) for t, n in zip(latency["tokens"], latency["sequences"], strict=True)]


def tokenization_of(latency: Mapping[str, Any]) -> float:
    """Milliseconds of a certificate's latency that are its tokenization."""
    for key in ("texts", "predicted", "kit"):
        if latency.get(key):
            return float(latency[key]["tokenization"])
    return 0.0


def find_prediction(latency: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What was predicted for a target, before or after the latency was measured there."""
    return latency.get("predicted") or latency.get("kit", {}).get("predicted")


def compute_whole(latency: Mapping[str, Any]) -> float | None:
    """Milliseconds that the model of the parent's shape took on the target, for the calls that the latency is the mean
    of. None without a target, and in certificates of earlier versions."""
    timed = (find_prediction(latency) or {}).get("whole")
    if not timed:
        return None
    lengths = sorted(map(int, timed))
    ms = [timed[str(length)] for length in lengths]
    calls = [sequences * np.interp(length, lengths, ms) for sequences, length in list_shapes(latency)]
    return float(np.mean(calls)) / int(latency["batch"])


def write_model_kit(model: str, output: Path, console: Console) -> None:
    """A kit that measures the latency of a fitted model where it is served.

    Raises UserError for a model without a certificate or an ONNX file, for a wrong or existing output, and DATA where
    a file is not the one that was certified.
    """
    folder = resolve(model)
    found = certificate.read(folder)
    if found["deployed"] != [certificate.ONNX]:
        what = f"a kit times {certificate.ONNX}, which this model is not served from"
        raise UserError(what, where=str(folder), do="run `compress verify` on the machine that serves")
    if output.suffix != SUFFIX:
        raise UserError(f"does not end in {SUFFIX}", where=f"--kit {output}", do=f"name a file such as check{SUFFIX}")
    if output.exists():
        raise UserError("exists already", where=str(output), do="name another file", code=ExitCode.REFUSED)
    checked = check_files(folder, found)
    if checked.verdict != "holds":
        raise UserError("the certificate does not hold", where=str(folder), why=checked.why, code=ExitCode.DATA)
    vocabulary = modelfolder.inspect(folder).config.vocabulary
    description: dict[str, Any] = {
        "sha256": found["files"][certificate.ONNX]["sha256"], "runtime": found["runtime"],
        "threads": int(found["device"]["threads"]), "shapes": list_shapes(found["latency"]), "vocabulary": vocabulary,
    }  # fmt: skip
    about, whole = find_prediction(found["latency"]), None
    usual = compute_whole(found["latency"])
    if about is not None and usual is not None:
        description["whole"] = {"most_ms": STEADY * usual}
        heads = {name: HeadConfig.from_dict(head) for name, head in about["shape"]["heads"].items()}
        encoder = EncoderConfig.from_dict({**about["shape"]["encoder"], "vocabulary": vocabulary})
        whole = write_whole(encoder, heads)
    kit = build_model_kit(folder / certificate.ONNX, description, whole)
    atomic.write_bytes(output, kit)
    needs = f"Python 3.11, numpy, {found['runtime']}"
    console.result(f"wrote {output}, {len(kit) / 1e6:.1f} MB, with {certificate.ONNX}")
    console.result(f"run it there ({needs}): python {output.name} --output measured.json")
    console.result(f"then here: compress verify {model} --measured measured.json")
    console.document({"kit": str(output), "bytes": len(kit)})


def read_measurement(path: Path, found: Mapping[str, Any]) -> KitMeasurement:
    """Raises UserError where it is not of this certificate's file, runtime, threads and lengths."""
    made = read_kit_file(path, KitMeasurement, NEW_KIT)
    for key, theirs, ours in (
        ("sha256", made.sha256, found["files"][certificate.ONNX]["sha256"]),
        ("runtime", made.runtime, found["runtime"]),
        ("device.threads", made.device.threads, str(found["device"]["threads"])),
        ("shapes", list(made.shapes), list_shapes(found["latency"])),
    ):  # fmt: skip
        if theirs != ours:
            what = f"{key} is not that of the certificate"
            shown, wanted = str(theirs)[:40], str(ours)[:40]
            why = None if shown == wanted else f"{shown}, not {wanted}"
            raise UserError(what, where=str(path), why=why, do=NEW_KIT)
    return made


def complete(found: Mapping[str, Any], made: KitMeasurement) -> dict[str, Any]:
    """The certificate with the latency that was measured where the model is served.

    If the machine was slower than when the target was measured, the latency at that speed is estimated, and the
    certificate says so.
    """
    before, about = found["latency"], find_prediction(found["latency"])
    tokenization, usual = tokenization_of(before), compute_whole(before)
    pace = made.latency.whole / usual if usual and made.latency.whole else None
    predicted_ms = before["ms"] if before.get("predicted") else before.get("kit", {}).get("predicted_ms")
    latency = {
        **{key: before[key] for key in SHAPE_KEYS if key in before}, **made.latency.model_dump(exclude={"whole"}),
        "kit": {"tokenization": tokenization, "predicted_ms": predicted_ms, "predicted": about, "pace": pace},
    }  # fmt: skip
    slow = certificate.is_slow(latency)
    ms = made.latency.p50 / (pace if pace and slow else 1.0) + tokenization
    latency |= {"ms": ms, "quiet": made.latency.quiet and not slow}
    gone = {certificate.BUSY, certificate.SLOW}
    if about is not None:
        gone.add(certificate.NOT_MEASURED.format(about["target"]))
    lasting = found["status"] != certificate.INFEASIBLE  # whose reasons are the bounds
    why = [one for one in found["why"] if lasting and one not in gone]
    why += [] if made.latency.quiet else [certificate.BUSY]
    why += [certificate.SLOW] if slow else []
    bounds, lost = Bounds(*(found["bounds"][key] for key in ("max_mb", "max_ms", "max_drop"))), found["difference"]
    over = bounds.over(found["size_mb"], ms, None if lost["value"] is None else -100 * lost["value"])
    status, why = certificate.judge(over, why)
    return {
        **found, "status": status, "why": why, "latency": latency, "speedup": None,
        "device": made.device.model_dump(), "versions": {**found["versions"], made.runtime: made.version},
    }  # fmt: skip

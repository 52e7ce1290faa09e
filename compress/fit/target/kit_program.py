"""What a kit runs on another machine: times the kit's ONNX files there and writes what it found as one JSON file.

    python kit.pyz --output target.json

Imports numpy and a runtime (onnxruntime, openvino), nothing else that is not Python's own: a kit is a copy of this file
and of the few that it imports.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

from compress.cpus import read_cpus
from compress.errors import ExitCode, UserError
from compress.onnx.axes import VECTOR
from compress.onnx.start import import_openvino, set_up_openvino, start_onnxruntime
from compress.storage.disk import report_write_errors
from evaluation.cost.cpu import cpu_flags, cpu_name
from evaluation.cost.latency import Latency, measure_interleaved
from evaluation.cost.least import find_least

FORMAT = 1
"""Of a kit, and of what it writes."""
DESCRIPTION = "kit.json"
RUNTIMES = ("onnxruntime", "openvino")
MODELS = ("whole", "narrow", "static")
"""Models that a kit times whole: as the parent, with fewer heads and neurons, and with static input ranges."""
LIMITS = ("ONEDNN_MAX_CPU_ISA",)
"""Variables that keep a runtime from instruction sets that the processor has: OpenVINO computes with oneDNN."""
WHOLE_REPEATS, WHOLE_SECONDS = 40, 4.0
REPEATS, SECONDS, ATTEMPTS = 60, 10.0, 3

Feed = Mapping[str, np.ndarray]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Way:
    """How files are timed: in which runtime, on how many threads, with how many sequences in a call."""

    runtime: str
    threads: int
    batch: int = 1

    def __str__(self) -> str:
        return f"{self.runtime}, {self.threads} thread{'s' * (self.threads != 1)}"


def find_runtimes(asked: str | None = None) -> list[str]:
    """The runtimes that are installed, or the one that is asked for. Raises UserError where there is none."""
    there = [name for name in RUNTIMES if util.find_spec(name) is not None]
    missing = asked if asked is not None and asked not in there else None if there else RUNTIMES[0]
    if missing is not None:
        raise UserError(
            f"{missing} is not installed", where="--runtime", do=f"pip install {missing}", code=ExitCode.ENVIRONMENT
        )
    return there if asked is None else [asked]


def open_file(content: bytes, way: Way) -> Callable[[Feed], object]:
    """What answers a batch."""
    if way.runtime == "openvino":
        core = import_openvino().Core()
        model = core.read_model(content)
        wanted = [port.get_any_name() for port in model.inputs]
        request = core.compile_model(model, "CPU", set_up_openvino(way.threads)).create_infer_request()
        return lambda feed: request.infer({name: feed[name] for name in wanted}, share_inputs=True)
    session = start_onnxruntime(content, way.threads)
    wanted = [entry.name for entry in session.get_inputs()]
    given = [entry.name for entry in session.get_outputs()]
    outputs = [name for name in given if name == VECTOR] or given
    return lambda feed: session.run(outputs, {name: feed[name] for name in wanted})


def make_feed(batch: int, length: int, vocabulary: int) -> Feed:
    """(batch, length) of random tokens: latency depends on their number, not on which they are."""
    ids = np.random.default_rng(0).integers(0, vocabulary, (batch, length), dtype=np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def time_blocks(
    kit: Mapping[str, Any],
    read: Callable[[str], bytes],
    ways: Sequence[Way],
    lengths: Sequence[int],
    say: Say,
    told: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """The content of a target file: milliseconds of every file of the kit, in each runtime and at each length.

    kit: its description.  read: the content of a file by its name.  ways: one for each runtime; threads and batch are
    the same.  told: of rounds.
    """
    runtimes = {}
    for way in ways:
        calls = [open_file(read(sample["file"]), way) for sample in kit["samples"]]
        models = [open_file(read(kit[name]["file"]), way) for name in MODELS]
        found = {}
        for length in lengths:
            say(f"{way}: timing {len(calls)} small models at {length} tokens")
            small = make_feed(way.batch, length, kit["rows"])
            how: dict[str, Any] = {"device": "cpu", "threads": way.threads, "told": told}
            least, busy = find_least([partial(call, small) for call in calls], **how)
            feed = make_feed(way.batch, length, kit["vocabulary"])
            calls_of_models = [partial(model, feed) for model in models]
            took = measure_interleaved(calls_of_models, repeats=WHOLE_REPEATS, seconds=WHOLE_SECONDS, **how)
            typical = {name: _typical(one) for name, one in zip(MODELS, took, strict=True)}
            found[str(length)] = {"ms": least, **typical, "busy": busy or _is_busy(took)}
        runtimes[way.runtime] = {"version": _version(way.runtime), "lengths": found}
    carried = {key: kit[key] for key in ("format", "compress", "shape", "rows_mb")}
    samples = [{key: value for key, value in sample.items() if key != "file"} for sample in kit["samples"]]
    how = {"device": describe_device(ways[0].threads), "batch": ways[0].batch}
    return {**carried, **how, "samples": samples, "runtimes": runtimes}


def time_model(kit: Mapping[str, Any], read: Callable[[str], bytes], way: Way, say: Say) -> dict[str, Any]:
    """What a deployed file takes: a call of each of the kit's shapes, on average.

    read: the content of a file by its name. If the kit has a model that the target was measured with, both are timed in
    turn. Again while the machine is busy, or slower than when the target was measured; the measurement in which that
    model is fastest counts.
    """
    feeds = [make_feed(batch, length, kit["vocabulary"]) for batch, length in kit["shapes"]]
    whole = kit.get("whole")
    calls = [open_file(read(name), way) for name in (kit["file"], *([whole["file"]] if whole else []))]
    rows = [[partial(call, feed) for feed in feeds] for call in calls]
    most = whole["most_ms"] * len(feeds) if whole else math.inf
    tries: list[list[Latency]] = []
    while not tries or (len(tries) < ATTEMPTS and not _is_steady(tries[-1], most)):
        say(f"{way}: timing the model, {len(tries) + 1} of at most {ATTEMPTS} times")
        tries.append(measure_interleaved(rows, device="cpu", repeats=REPEATS, seconds=SECONDS, threads=way.threads))
    found, *beside = min(tries, key=lambda one: (_is_busy(one), one[1].p50)) if whole else tries[-1]
    names = ("p50", "p95", "minimum")
    return {
        "format": FORMAT, "sha256": kit["sha256"], "runtime": way.runtime, "version": _version(way.runtime),
        "shapes": kit["shapes"], "device": describe_device(way.threads),
        "latency": {
            **{name: getattr(found, name) / len(feeds) for name in names}, "repeats": found.repeats,
            "cpu_share": found.cpu_share, "spread": found.spread, "quiet": not _is_busy([found, *beside]),
            "attempts": len(tries), "whole": _typical(beside[0]) / len(feeds) if beside else None,
        },
    }  # fmt: skip


def describe_device(threads: int) -> dict[str, str]:
    """What was timed on, with the limits that it was kept to."""
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if os.environ.get(name)]
    return {
        "device": cpu_name(), "device_kind": "cpu", "threads": str(threads), "cpu_flags": " ".join(cpu_flags()),
        "limits": " ".join(limits),
    }  # fmt: skip


def parse_lengths(text: str) -> list[int]:
    """`8,16,32`, ascending. Raises ValueError for what is no list of numbers of tokens."""
    found = sorted({int(part) for part in text.split(",")})
    if found[0] < 1:
        raise ValueError(text)
    return found


def require_cpus(threads: int) -> None:
    """Raises UserError for more threads than can compute at once: they would take turns for minutes."""
    usable = read_cpus().usable
    if threads > usable:
        cpus = f"{usable} CPU{'s' * (usable != 1)}"
        raise UserError(f"this process may use {cpus}", where=f"--threads {threads}", do=f"give at most {usable}")


def choose_lengths(given: Sequence[int] | None, kit: Mapping[str, Any]) -> list[int]:
    """The lengths to time. Raises UserError for one that the model does not read."""
    found = list(given or kit["lengths"])
    if found[-1] > kit["positions"]:
        most = kit["positions"]
        raise UserError(f"the model has {most} positions", where=f"--lengths {found[-1]}", do=f"give at most {most}")
    return found


def _version(runtime: str) -> str:
    try:
        return metadata.version(runtime)
    except metadata.PackageNotFoundError:  # onnxruntime comes under several names
        return "unknown"


def _is_steady(found: Sequence[Latency], most: float) -> bool:
    """most: milliseconds of the last of them."""
    return not _is_busy(found) and found[-1].p50 <= most


def _is_busy(found: Sequence[Latency]) -> bool:
    return any(one.contaminated for one in found)


def _typical(latency: Latency) -> float:
    """The median; on a busy machine the least, as the times of the blocks are."""
    return latency.minimum if latency.contaminated or not latency.is_known else latency.p50


def _parse(kit: Mapping[str, Any], name: str, args: Sequence[str] | None) -> argparse.Namespace:
    of_model = "shapes" in kit
    about = "Time the fitted model" if of_model else "Time blocks of the model"
    parser = argparse.ArgumentParser(prog=f"python {name}", description=f"{about} on this machine.", allow_abbrev=False)
    usual = "measured.json" if of_model else "target.json"
    parser.add_argument("--output", type=Path, default=Path(usual), metavar="FILE", help=f"default: {usual}")
    if not of_model:
        parser.add_argument("--threads", type=int, help="number of threads (default: the CPUs this process may use)")
        parser.add_argument("--lengths", metavar="N,N", help=f"tokens (default: {','.join(map(str, kit['lengths']))})")
        parser.add_argument("--batch", type=int, default=1, help="sequences per call (default: 1)")
        parser.add_argument("--runtime", choices=RUNTIMES, help="default: those that are installed")
    return parser.parse_args(args)


def _choose(kit: Mapping[str, Any], given: argparse.Namespace) -> tuple[list[Way], list[int]]:
    """How blocks are timed, and at which lengths. Raises UserError for what cannot be timed."""
    for flag in ("threads", "batch"):
        if getattr(given, flag) is not None and getattr(given, flag) < 1:
            raise UserError("give a number above 0", where=f"--{flag} {getattr(given, flag)}")
    try:
        lengths = None if given.lengths is None else parse_lengths(given.lengths)
    except ValueError:
        do = "give numbers of tokens, such as 8,16,32"
        raise UserError("not a list of lengths", where=f"--lengths {given.lengths}", do=do) from None
    threads = given.threads or read_cpus().usable
    require_cpus(threads)
    ways = [Way(name, threads, given.batch) for name in find_runtimes(given.runtime)]
    return ways, choose_lengths(lengths, kit)


def _run(archive: Path, args: Sequence[str] | None) -> Path:
    with ZipFile(archive) as files:
        kit = json.loads(files.read(DESCRIPTION))
        given = _parse(kit, archive.name, args)
        if given.output.exists():
            raise UserError("exists already", where=str(given.output), do="name another file", code=ExitCode.REFUSED)
        if not given.output.parent.is_dir():
            raise UserError("no such folder", where=str(given.output.parent), do="make it, or name another")
        _write(given.output, "").unlink()  # found now, not after minutes of measuring
        say = partial(print, file=sys.stderr, flush=True)
        if "shapes" in kit:
            find_runtimes(kit["runtime"])
            found = time_model(kit, files.read, Way(kit["runtime"], kit["threads"]), say)
        else:
            ways, lengths = _choose(kit, given)
            found = time_blocks(kit, files.read, ways, lengths, say)
    return _write(given.output, json.dumps(found, indent=1, allow_nan=False) + "\n")


def _write(output: Path, text: str) -> Path:
    """The whole file, or none and UserError."""
    part = output.with_name(f"{output.name}.part")
    with report_write_errors(output, len(text)):
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, output)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    return output


def main(archive: Path, args: Sequence[str] | None = None) -> int:
    """Run a kit. archive: its file.  args: of the command line; None: those of this process."""
    try:
        print(f"wrote {_run(archive, args)}")
    except UserError as error:
        print(error.line(), file=sys.stderr)
        return int(error.code)
    except ImportError as error:  # of a runtime that is installed, but not for this machine
        print(f"a runtime cannot be imported: {error}", file=sys.stderr)
        return int(ExitCode.ENVIRONMENT)
    except KeyboardInterrupt:
        return 130
    return 0

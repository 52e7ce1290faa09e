"""Report this machine's versions, devices, threads, store and disk, and which extras are missing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from compress import __version__
from compress.cli._help import Command
from compress.cli.options import shared
from compress.cpus import read_cpus
from compress.errors import ExitCode, UserError

if TYPE_CHECKING:
    from compress.contracts import RunOptions

DISTRIBUTION = "compress-bert"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
ENOUGH_DISK_GB = 5

State = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Finding:
    """One line of the report. state: missing means that something which was asked for cannot work."""

    subject: str
    found: str
    state: State = "ok"
    do: str = ""


@click.command(cls=Command)
@shared("store")
def command(options: RunOptions) -> int:
    """Report the versions, devices, threads, store and disk of this machine, and what each extra lacks.

    \b
      compress doctor --json
    """
    from compress.console import Console

    findings = [*_system(), *_compute(), *_store(options.tracking_uri), *_disk(), *_packages(), _browser()]
    console = Console(quiet=options.quiet, json=options.json)
    marks = {"ok": "ok", "note": "note", "missing": "MISSING"}
    console.table("", ["", "found", "", "what to do"], [[f.subject, f.found, marks[f.state], f.do] for f in findings])
    console.document([asdict(f) for f in findings])
    return ExitCode.ENVIRONMENT if any(f.state == "missing" for f in findings) else ExitCode.OK


def _system() -> Iterator[Finding]:
    yield Finding("compress", __version__)
    yield Finding("python", f"{platform.python_version()} at {sys.executable}")
    yield Finding("system", f"{platform.system()} {platform.release()}, {platform.machine()}")


# --- compute ----------------------------------------------------------------------------------------------------


def _compute() -> Iterator[Finding]:
    from evaluation.cost.cpu import cpu_flags, cpu_name

    yield Finding("cpu", cpu_name())
    yield Finding("CPUs", str(read_cpus()))
    yield _instructions(cpu_flags())
    memory = _memory_gb()
    if memory:
        yield Finding("memory", "{:.1f} GB, {:.1f} GB free".format(*memory))
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", f"cannot be imported: {error}", "missing", "pip install torch")
        return
    yield Finding("torch", f"{torch.__version__}, uses {torch.backends.cpu.get_cpu_capability()}")
    yield Finding("threads", f"{torch.get_num_threads()} (change with --threads)")
    yield from _gpus()
    yield from _energy()
    yield _processes()
    yield _runtimes()


def _instructions(flags: Sequence[str]) -> Finding:
    """What the processor can do, and what it means for int8 models."""
    from evaluation.cost.cpu import saturates

    found = " ".join(flags) or "unknown"
    if saturates():
        do = "int8 models give the same outputs here but gain less speed than with VNNI: run compress benchmark"
        return Finding("cpu instructions", f"{found}: no VNNI, so int8 products are slower", "note", do)
    return Finding("cpu instructions", found, "ok" if flags else "note")


def _runtimes() -> Finding:
    """What can answer with a model: `--runtime`."""
    from compress.onnx.runtimes import EXTRAS, ON_GPU, package, versions

    there = {package(name): version for name, version in versions().items()}
    if there[ON_GPU] is None:  # nobody should install it beside the other onnxruntime
        del there[ON_GPU]
    absent = [EXTRAS[name] for name, version in there.items() if version is None]
    found = ", ".join(f"{name} {version}" if version else f"no {name}" for name, version in there.items())
    do = f"pip install '{DISTRIBUTION}[{','.join(absent)}]'" if absent else ""
    return Finding("runtimes", found, "note" if absent else "ok", do)


def _processes() -> Finding:
    """Whether several processes can train together."""
    import torch
    import torch.distributed as dist

    ways = [name for name, there in (("gloo", dist.is_available() and dist.is_gloo_available()),) if there]
    ways += ["nccl"] if torch.cuda.is_available() and dist.is_nccl_available() else []
    if not ways:
        return Finding("distributed training", "torch.distributed is not available", "note", "runs use one process")
    return Finding("distributed training", f"{' and '.join(ways)} (torchrun --nproc-per-node N -m compress …)")


def _gpus() -> Iterator[Finding]:
    import torch

    from compress.encoder.infer.semi_structured import skips_zeros
    from compress.training.gpu import find_obstacle

    obstacle = find_obstacle()
    if obstacle is not None:
        yield Finding("gpu", f"none: {obstacle.why}", "note", "runs use the CPU")
        return
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        bf16 = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no bf16"
        found = f"{card.name}, {card.total_memory / 1e9:.0f} GB, compute {card.major}.{card.minor}, {bf16}"
        found += ", skips 2:4 zeros" if skips_zeros(f"cuda:{index}") else ""
        yield Finding(f"gpu {index}", found)
    yield _triton()


def _triton() -> Finding:
    """Whether norms and losses over a vocabulary are computed by kernels of our own."""
    version = _version("triton")
    if version is None:
        found = "not installed: norms and vocabulary losses are slower, torch-compile does not work"
        return Finding("triton", found, "note", "install the triton version of this torch")
    return Finding("triton", version)


def _energy() -> Iterator[Finding]:
    """Whether the energy of a model can be measured."""
    import torch

    from evaluation.cost.energy import find_counters

    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        counters = find_counters(device)
        do = f"pip install '{DISTRIBUTION}[energy]'" if "nvidia-ml-py" in counters.why else "no energy is reported"
        found = f"{counters.names} (energy per 1,000 texts is measured)" if counters.found else f"none: {counters.why}"
        yield Finding(f"energy, {device}", found, "ok" if counters.found else "note", "" if counters.found else do)


def _memory_gb() -> tuple[float, float] | None:
    try:
        import psutil
    except ImportError:
        return None  # `_packages` says so
    memory = psutil.virtual_memory()
    return memory.total / 1e9, memory.available / 1e9


# --- store and disk ---------------------------------------------------------------------------------------------


def _store(uri: str | None) -> Iterator[Finding]:
    from compress.tracking.relocating import require_in_place
    from compress.tracking.store import require_driver, resolve_store

    try:
        store = resolve_store(uri)
    except UserError as error:
        yield Finding("store", error.line(), "missing")
        return
    where = store.shown if store.chosen == "default" else f"{store.shown} (from {store.chosen})"
    if store.database is None:
        try:
            require_driver(store)
        except UserError as error:
            yield Finding("store", f"{where}: {error.what}", "missing", error.do or "")
            return
        yield Finding("store", where, "ok", "not checked; `compress ui` opens it")
    elif not store.database.exists():
        yield Finding("store", f"{where}: does not exist yet", "ok", "the first run creates it")
    else:
        yield _database(store.database, where)
        try:
            require_in_place(store)
        except UserError as error:
            yield Finding("store", f"{error.what}: {error.why}", "missing", error.do or "")


def _database(path: Path, where: str) -> Finding:
    """State of a sqlite store, read without touching it."""
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=2)
        try:
            runs = connection.execute("select count(*) from runs").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        do = "try again when no run is writing; otherwise move the file away and restore it with `compress sync`"
        return Finding("store", f"{where}: cannot be read: {error}", "missing", do)
    return Finding(
        "store", f"{where}: {runs:,} runs, {path.stat().st_size / 1e6:.1f} MB", "ok", "`compress ui` opens it"
    )


def _disk() -> Iterator[Finding]:
    here = Path.cwd()
    free = shutil.disk_usage(here).free / 1e9
    few = free < ENOUGH_DISK_GB
    yield Finding(
        "disk",
        f"{free:.1f} GB free at {here}",
        "note" if few else "ok",
        "may be too little for checkpoints" if few else "",
    )
    if not os.access(here, os.W_OK):
        yield Finding("folder", f"{here} is not writable", "note", "work in another folder, or use --output")


# --- packages ---------------------------------------------------------------------------------------------------


def _packages() -> Iterator[Finding]:
    """Dependencies, and per extra what is not installed, from the package's own metadata."""
    try:
        required = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Finding("packages", f"{DISTRIBUTION} is not installed", "note", "pip install -c constraints.txt -e .")
        return
    for extra, names in _by_extra(required).items():
        versions = {name: _version(name) for name in names}
        if extra:
            yield _extra(extra, versions)
            continue
        for name, version in versions.items():
            if version is None:
                yield Finding(name, "not installed", "missing", f"pip install {name}")
            elif name != "torch":  # told above, with what it can do
                yield Finding(name, version)


def _extra(extra: str, versions: Mapping[str, str | None]) -> Finding:
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        do = f"pip install '{DISTRIBUTION}[{extra}]'"
        return Finding(f"extra {extra}", f"not installed: {', '.join(absent)}", "note", do)
    return Finding(f"extra {extra}", ", ".join(f"{name} {version}" for name, version in versions.items()))


def _by_extra(required: list[str], platform: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """Requirement lines → names by extra ("" = core), of those that are meant for this platform; an extra that includes
    another one of ours is not repeated. platform: values of environment markers in place of this machine's."""
    from packaging.requirements import Requirement

    groups: dict[str, list[str]] = {}
    for line in required:
        found = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        needed, extra = Requirement(line), found[1] if found else ""
        is_for_us = needed.marker is None or needed.marker.evaluate({**(platform or {}), "extra": extra})
        if is_for_us and needed.name != DISTRIBUTION:
            groups.setdefault(extra, []).append(needed.name)
    return groups


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _browser() -> Finding:
    """Needed by nobody but the test of the tracking page."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        return Finding("chromium", "not found", "note", "only the browser test of `compress ui` needs it")
    return Finding("chromium", found)

"""`compress profile`: what blocks of a model cost, measured here, or a kit that measures it on another machine."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import ExitCode, UserError
from compress.fit.request.case import require_fittable
from compress.fit.target.kit import SUFFIX, build_kit, default_lengths
from compress.fit.target.kit_program import DESCRIPTION, Way, choose_lengths, find_runtimes, require_cpus, time_blocks
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.resolve import resolve
from compress.storage import atomic


@dataclass(frozen=True)
class ProfileOptions:
    """lengths: in tokens, ascending; None: the usual ones.  batch: sequences per call; None: 1."""

    lengths: Sequence[int] | None = None
    batch: int | None = None


def profile(model: str, wanted: ProfileOptions, options: RunOptions, console: Console) -> None:
    """Write `options.output`: a target file, or a kit where it ends in `.pyz`.

    Raises UserError for a model that cannot be fitted, and for an output that is there.
    """
    import torch

    target = _choose_output(options, wanted)
    source = resolve(model, options.tracking_uri)
    info = modelfolder.inspect(source)
    if "task" not in info.heads:
        raise UserError("the model has no task head", where=str(source), do="fine-tune it first: compress finetune")
    require_fittable(info.config, source)
    runtimes = []
    if target.suffix != SUFFIX:
        require_cpus(torch.get_num_threads())
        runtimes = find_runtimes(options.runtime)
    limits = {"lengths": default_lengths(info.config), "positions": info.config.max_positions}
    lengths = choose_lengths(wanted.lengths, limits)
    loaded = modelfolder.load_model(source, require={"task"}, keep={"task"})
    kit = build_kit(loaded, lengths, console.slow_progress)
    if target.suffix == SUFFIX:
        atomic.write_bytes(target, kit)
        console.result(f"wrote {target}, {len(kit) / 1e6:.1f} MB; its models have random weights, not yours")
        console.result(
            f"run it there (Python 3.11, numpy, onnxruntime or openvino): python {target.name} --output target.json"
        )
        console.document({"kit": str(target), "bytes": len(kit)})
        return
    ways = [Way(name, torch.get_num_threads(), wanted.batch or 1) for name in runtimes]
    with ZipFile(io.BytesIO(kit)) as files, console.slow_progress("timing small models", None, "rounds") as progress:
        description = json.loads(files.read(DESCRIPTION))
        found = time_blocks(description, files.read, ways, lengths, console.note, progress.update)
    atomic.write_json(target, found)
    console.result(f"wrote {target}: {', '.join(runtimes)}; {', '.join(map(str, lengths))} tokens")
    console.result(f"plan for it compress fit {model} --data DATA --max-ms MS --target {target}")
    console.document({"target": str(target), **found["device"], "runtimes": runtimes, "lengths": lengths})


def _choose_output(options: RunOptions, wanted: ProfileOptions) -> Path:
    """Raises UserError where it is missing, is there already, is no name of a file of either kind, or cannot be
    written."""
    target = options.output
    if target is None:
        do = "add --output target.json, or kit.pyz to measure on another machine"
        raise UserError("an output file is required", where="--output", do=do)
    if target.suffix not in (".json", SUFFIX):
        do = "name a file such as target.json (measure here) or kit.pyz (measure on another machine)"
        raise UserError("ends neither in .json nor in .pyz", where=f"--output {target}", do=do)
    if target.exists():
        raise UserError("exists already", where=str(target), do="name another file", code=ExitCode.REFUSED)
    if target.suffix == SUFFIX:
        for flag, given in (
            ("--threads", options.threads), ("--runtime", options.runtime), ("--batch", wanted.batch),
        ):  # fmt: skip
            if given is not None:
                raise UserError(
                    "is chosen where the kit runs", where=flag, do=f"remove it, and give it to {target.name} there"
                )
    atomic.require_writable(target)
    return target

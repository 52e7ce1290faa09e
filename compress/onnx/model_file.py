"""The ONNX file of a model folder: how it is named, what is written beside it, and whether it still belongs there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from compress.errors import UserError
from compress.modelfolder import cascade as cascades
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.meta import ONNX, is_cascade
from compress.modelfolder.open import file_digest, require_as_written
from compress.onnx.gpu_session import open_on_gpu
from compress.onnx.openvino_session import OpenVinoSession
from compress.onnx.precision import FLOAT
from compress.onnx.runtimes import IN_TORCH, PROVIDERS, RUNTIMES, Runtime, versions
from compress.onnx.session import FileSession, OnnxSession
from compress.storage import safe

FILE, RECORD = ONNX, "onnx.json"
SECOND, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"
"""Names that other programs look for. They are further names of the one file, which takes its room once."""


def open_session(
    folder: Path,
    runtime: Runtime = "onnxruntime",
    *,
    threads: int | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
) -> FileSession:
    """The folder's ONNX file in a runtime, ready to answer for its task head.

    threads: None for torch's number of them.  precision: of what OpenVINO, or a provider on a GPU, computes in floats.

    Raises UserError when there is none, when file or weights are not those of the export, and when it answers for
    another head.
    """
    record = require_unchanged(folder)
    if record.get("model") != modelfolder.fingerprint(folder):
        raise UserError(
            f"the weights have changed since {FILE} was exported", where=str(folder), do="export the model again"
        )
    if record.get("head") != "task":
        raise UserError(
            f"{FILE} was exported for head '{record.get('head')}'", where=str(folder), do="export it with --head task"
        )
    if runtime in PROVIDERS:
        if record.get("precision") != FLOAT:
            raise UserError(
                f"{runtime} does not support quantized files",
                where=str(folder),
                why=f"{FILE} is {record.get('precision')}",
                do="use --runtime torch, or --device cpu",
            )
        return open_on_gpu(folder / FILE, runtime, precision=precision)
    if runtime == "openvino":
        return OpenVinoSession(folder / FILE, threads=threads, precision=precision)
    return OnnxSession(folder / FILE, threads=threads)


def usual_runtime(folder: Path) -> Runtime:
    """What answers with this folder where nobody said: of a quantized one a runtime that reads its file."""
    if not (folder / RECORD).is_file() or read_record(folder).get("precision") == FLOAT:
        return "torch"
    return find_file_runtime(folder) or "torch"


def find_file_runtime(folder: Path) -> Runtime | None:
    """An installed runtime that reads the folder's file on the CPU; None without one."""
    if not (folder / RECORD).is_file():
        return None
    there = versions()
    return next((name for name in RUNTIMES if name not in {*IN_TORCH, *PROVIDERS} and there[name] is not None), None)


def find_files(exported: Path, folder: Path) -> dict[str, bytes]:
    """The file of the folder `exported` under its names, with its record, if it is that of the weights in `folder`;
    else empty."""
    if not (exported / RECORD).is_file():
        return {}
    record, file = read_record(exported), exported / FILE
    if record.get("sha256") != file_digest(file) or record.get("model") != modelfolder.fingerprint(folder):
        return {}
    content = file.read_bytes()
    names = [name for name in (FILE, SECOND, QUANTIZED) if (exported / name).is_file()]
    return {**dict.fromkeys(names, content), RECORD: (exported / RECORD).read_bytes()}


def require_unchanged(folder: Path) -> Mapping[str, Any]:
    """What the export wrote down. Raises UserError when the file is not the one that it wrote, or the folder was not
    exported."""
    record = read_record(folder)
    if record.get("sha256") != file_digest(folder / FILE):
        raise UserError(f"{FILE} has changed since the export", where=str(folder), do="export the model again")
    return record


def require_publishable(folder: Path) -> None:
    """Raises UserError for a folder with changed weights, a changed certificate or a damaged ONNX file, and for a
    cascade without one of its models or with other labels than theirs, before others get it."""
    places = [folder]
    if is_cascade(folder):
        cascades.inspect(folder)
        places = cascades.read(folder).folders
    require_as_written(folder)
    for place in places:
        if (place / RECORD).is_file():
            require_unchanged(place)


def read_record(folder: Path) -> Mapping[str, Any]:
    """What the export wrote down. Raises UserError when the folder was not exported."""
    for name in (FILE, RECORD):
        if not (folder / name).is_file():
            raise UserError(f"no {name}", where=str(folder), do=f"export it first: compress export {folder} --output …")
    return safe.read_json(folder / RECORD, 2**20)

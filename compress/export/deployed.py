"""The ONNX file of a model folder: how it is named, what is written beside it, and whether it still belongs there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from compress.durable import safe
from compress.errors import UserError
from compress.export.session import OnnxSession
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.opening import file_digest

FILE, RECORD = "model.onnx", "onnx.json"
Runtime = Literal["torch", "onnxruntime"]
RUNTIMES = ("torch", "onnxruntime")


def open_session(folder: Path, *, threads: int | None = None) -> OnnxSession:
    """The folder's ONNX file, ready to answer for its task head.

    Raises UserError when there is none, when file or weights are not those of the export, and when it answers for
    another head.
    """
    record = read_record(folder)
    if record.get("sha256") != file_digest(folder / FILE):
        raise UserError(f"{FILE} was changed since the export", where=str(folder), do="export the model again")
    if record.get("model") != modelfolder.fingerprint(folder):
        raise UserError(
            f"the weights are not those that {FILE} was made of", where=str(folder), do="export the model again"
        )
    if record.get("head") != "task":
        raise UserError(
            f"{FILE} answers for the head '{record.get('head')}'", where=str(folder), do="export it with --head task"
        )
    return OnnxSession(folder / FILE, threads=threads)


def read_record(folder: Path) -> Mapping[str, Any]:
    """What the export wrote down. Raises UserError when the folder was not exported."""
    for name in (FILE, RECORD):
        if not (folder / name).is_file():
            raise UserError(f"no {name}", where=str(folder), do=f"export it first: compress export {folder} --output …")
    return safe.read_json(folder / RECORD, 2**20)

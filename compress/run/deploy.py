"""Writes the ONNX files of quantized models before they are measured: the figures are those of the deployed file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.tables.table import Rows
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.open import file_digest
from compress.onnx.check import ROWS
from compress.onnx.model_file import FILE, RECORD, read_record
from compress.onnx.runtimes import EXTRAS, make_missing_error, versions
from compress.predict.predictor import MAX_TOKENS, Predictor

Say = Callable[[str], None]


def can_write() -> bool:
    """Whether what writes ONNX files, and reads them again, is installed."""
    return versions()["onnxruntime"] is not None


def require_writer(asked: bool | None) -> None:
    """Raise UserError where files are asked for by name and cannot be written here."""
    if asked and not can_write():
        raise make_missing_error(ImportError(name="onnxruntime"))


def deploy(
    folders: Sequence[Path], rows: Rows, what: str, max_length: int, asked: bool | None, say: Say, warn: Say
) -> None:
    """Add `model.onnx` to those of `folders` that are quantized, each checked on the first rows.

    what: the rows are, for people.  asked: None for where it can be written; then a model that cannot be expressed, or
    a file that answers otherwise, is warned of and left out. Raises UserError for it where files are asked for by name.
    """
    due = [f for f in folders if modelfolder.inspect(f).config.quantization is not None and not _has_file(f)]
    if not due or asked is False:
        return
    if not can_write():
        say(f"{FILE} is not written and quantization is simulated: pip install 'compress-bert[{EXTRAS['onnx']}]'")
        return
    from compress.onnx.writer import write_into

    few = rows.take(np.arange(min(ROWS, len(rows))))
    for folder in due:
        examples = Predictor(folder, runtime="torch").encode_rows(few, max_length=max_length)
        examples = examples.take(np.arange(min(ROWS, len(examples))))  # a query has many
        try:
            written = write_into(folder, list(evaluation_batches(examples, MAX_TOKENS)), what)
        except UserError as error:
            if asked:
                raise
            warn(f"no {FILE} in {folder}: {error.line()}")
        else:
            for line in written.findings:
                say(line)
            say(f"wrote {folder / FILE}, {len(written.content) / 1e6:.1f} MB")


def _has_file(folder: Path) -> bool:
    """Whether the folder's file is that of its weights: a run that goes on wrote it before."""
    if not (folder / RECORD).is_file():
        return False
    record = read_record(folder)
    return record.get("model") == modelfolder.fingerprint(folder) and record.get("sha256") == file_digest(folder / FILE)

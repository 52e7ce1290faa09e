"""The ONNX file of a model, written and checked: it holds what the model computes, or it is not there."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compress import __version__
from compress.contracts import Batch
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import FolderMeta, LoadedModel
from compress.onnx.axes import EXACT
from compress.onnx.check import Check, ReferenceOutputs, compute_reference, file_answer
from compress.onnx.encoder import encode
from compress.onnx.model_file import FILE, QUANTIZED, RECORD, SECOND
from compress.onnx.openvino_session import OpenVinoSession
from compress.onnx.precision import FLOAT, precision_of
from compress.onnx.runtimes import Runtime, versions
from compress.onnx.session import OnnxSession
from compress.onnx.tracing import trace_model

if TYPE_CHECKING:
    from onnx import ModelProto

Writer = Literal["compress", "torch"]
BARE = "none"
"""The head of a file that gives the encoder's states."""
RANDOM = "random tokens"
"""What a file is checked on where there is no data."""
GIVE_DATA = "give representative rows with --data: the check used random tokens"


@dataclass(frozen=True)
class WrittenFile:
    """An ONNX file that passed its check in onnxruntime. record: what is written beside it.  expected: what it was
    checked against.  others: how it answers in the other runtimes that are installed, or why one cannot load it."""

    content: bytes
    record: dict[str, Any]
    check: Check
    expected: ReferenceOutputs
    others: Mapping[Runtime, Check | UserError] = field(default_factory=dict)

    @property
    def findings(self) -> list[str]:
        """How the file answers in each runtime, a line each."""
        lines = [self.check.sentence()]
        for runtime, found in self.others.items():
            if isinstance(found, UserError):
                lines.append(f"{found.what}: {found.why}")
            elif found.complaint is None:
                lines.append(f"in {runtime}: {found.figures}")
            else:
                lines.append(
                    f"the file does not match the model in {runtime}: {found.complaint}; do not serve it with {runtime}"
                )
        return lines

    @property
    def note(self) -> str:
        """For the model card."""
        products = "" if self.record["precision"] == FLOAT else f", integer products {EXACT}"
        return f"{FILE}: {self.record['precision']}, opset {self.record['opset']}{products}; {self.check.sentence()}"

    @property
    def files(self) -> dict[str, bytes]:
        """By name, as they lie in a model folder. The content is one object under all its names, so that it becomes
        one file."""
        names = [FILE, SECOND, *([] if self.record["precision"] == FLOAT else [QUANTIZED])]
        return {**dict.fromkeys(names, self.content), RECORD: json.dumps(self.record, indent=2).encode()}


def write(
    loaded: LoadedModel,
    head: str | None,
    batches: Sequence[Batch],
    what: str,
    *,
    opset: int | None = None,
    portable: bool = False,
    by: Writer = "compress",
    where: Path | None = None,
) -> WrittenFile:
    """The file of one head, by our own writer or by torch's exporter. opset: None for the oldest that the writer has.

    where: the model is, for people; None: in its folder.
    The file is opened as any program opens it, in every runtime that is installed. Raises UserError for what the writer
    cannot express, and where the file computes otherwise in onnxruntime than the model, which for a quantized one is
    the model with rounded numbers, not the float one that it came from.
    """
    source = modelfolder.fingerprint(loaded.path)
    notes = notes_of(source, head)
    asked = {} if opset is None else {"opset": opset}
    if by == "torch":
        made = trace_model(loaded.model, head, **asked, notes=notes)
    else:
        made = encode(loaded.model, head, **asked, portable=portable, notes=notes)
    content = made.SerializeToString()
    expected = compute_reference(loaded.model, head, batches, what)
    check = expected.check(file_answer(OnnxSession(content)))
    check.require("the ONNX file", str(where or loaded.path), do=GIVE_DATA if what == RANDOM else None)
    others: dict[Runtime, Check | UserError] = {}
    if versions()["openvino"] is not None:
        try:
            others["openvino"] = expected.check(file_answer(OpenVinoSession(content)))
        except UserError as error_there:
            others["openvino"] = error_there
    record = {
        "file": FILE, "sha256": hashlib.sha256(content).hexdigest(), "opset": opset_of(made), "head": head or BARE,
        "precision": precision_of(loaded.model), "model": source, "check": vars(check), "writer": by,
        "int8_products": EXACT,
        "checks": {name: vars(found) for name, found in others.items() if isinstance(found, Check)},
    }  # fmt: skip
    return WrittenFile(content, record, check, expected, others)


def write_as_saved(
    loaded: LoadedModel,
    tokenizer_files: Mapping[str, bytes],
    meta: FolderMeta,
    head: str | None,
    batches: Sequence[Batch],
    what: str,
    *,
    reads: int | None = None,
    opset: int | None = None,
    portable: bool = False,
    by: Writer = "compress",
) -> WrittenFile:
    """As `write`, for the folder that `save_model` makes of the same: the record names the weights, the config and the
    tokenizer that it belongs to, and those of a folder that another program wrote are others."""
    with tempfile.TemporaryDirectory(prefix="compress-export-") as temporary:
        folder = Path(temporary) / "model"
        modelfolder.save_model(folder, loaded.model, tokenizer_files=tokenizer_files, meta=meta, reads=reads)
        ours = modelfolder.load_model(folder, exits=True)
        return write(ours, head, batches, what, opset=opset, portable=portable, by=by, where=loaded.path)


def opset_of(made: ModelProto) -> int:
    """The version of the standard operators of a file."""
    return next(entry.version for entry in made.opset_import if not entry.domain)


def notes_of(source: str, head: str | None) -> dict[str, str]:
    """What stands in the file itself. source: the fingerprint of the model's folder."""
    return {"compress.version": __version__, "compress.source": source, "compress.head": head or BARE}


def choose_head(loaded: LoadedModel, asked: str | None) -> str | None:
    if asked is None:
        return "task" if "task" in loaded.heads else None
    if asked == BARE:
        return None
    if asked not in loaded.heads:
        has = ", ".join([*loaded.heads, BARE])
        raise UserError(f"the model has no '{asked}' head", where="--head", why=f"it has: {has}")
    return asked


def write_into(folder: Path, batches: Sequence[Batch], what: str, *, by: Writer = "compress") -> WrittenFile:
    """Add `model.onnx` for the task head to a folder that we wrote. Raises UserError as `write` does.

    batches: that it is checked on.  what: these are, for people.  by: see `write`.
    """
    loaded = modelfolder.load_model(folder, exits=True)
    written = write(loaded, choose_head(loaded, None), batches, what, by=by)
    meta = loaded.meta.model_copy(update={"notes": (*loaded.meta.notes, written.note)})
    modelfolder.annotate(folder, meta, beside=written.files)
    return written

"""`compress export`: a model folder in, one out that holds an ONNX file too, checked and timed before it is written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compress import __version__
from compress.console import Console
from compress.contracts import Batch, Needs, RunOptions
from compress.data.batches import evaluation_batches
from compress.data.examples import Examples
from compress.data.random_rows import mixed_lengths, random_rows
from compress.encoder.inference import prepare
from compress.errors import ExitCode, UserError
from compress.export.check import ROWS, TOLERANCE, Check, compare, file_answer, model_answer, quantization_error
from compress.export.deployed import FILE, RECORD
from compress.export.encoder import encode
from compress.export.graph import OPSET
from compress.export.precision import precision_of
from compress.export.session import OnnxSession
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel, Parent
from compress.modelnames import resolve
from compress.predictor import MAX_TOKENS, Predictor
from compress.standalone import labelled
from evaluation.cost.latency import measure_interleaved

BARE = "none"
TIMED_LENGTHS = (32, 128)


def export_folder(
    name: str, head: str | None, opset: int, split: str, options: RunOptions, *, portable: bool = False
) -> Check:
    """Write `options.output`: the model called `name` with `model.onnx` beside its weights.

    head: whose answer the file gives, "none" for the bare encoder's states, None for the task's where there is one.
    portable: see `encode`.
    Raises UserError for a head that the model has not, for what the writer cannot express, when the file does not
    compute what the model computes, and when there is no output or it exists already.
    """
    if options.output is None:
        raise UserError("where does the result go?", where="--output", do="give --output FOLDER")
    if options.output.exists():
        raise UserError("exists already", where=str(options.output), do="name another folder", code=ExitCode.REFUSED)
    console = Console(quiet=options.quiet, json=options.json)
    folder = resolve(name)
    loaded = modelfolder.load_model(folder)
    chosen = _head(loaded, head)
    parent = Parent(role="base", name=folder.name, fingerprint=modelfolder.fingerprint(folder))
    console.note(f"writing {folder.name} as ONNX, opset {opset}")
    batches, what = _rows(loaded, split, options, console)
    written = write(loaded, chosen, batches, what, opset=opset, portable=portable)
    console.result(written.check.sentence())
    times = _times(loaded, chosen, OnnxSession(written.content), console)
    written = dataclasses.replace(written, record={**written.record, "latency_ms": times})
    notes = (*loaded.meta.notes, written.note)
    meta = loaded.meta.model_copy(update={"lineage": (parent,), "notes": notes})
    files = loaded.tokenizer_files
    modelfolder.save_model(options.output, loaded.model, tokenizer_files=files, meta=meta, beside=written.files)
    console.result(f"wrote {options.output / FILE}, {len(written.content) / 1e6:.1f} MB")
    console.document({"folder": str(options.output), **written.record, "bytes": len(written.content)})
    return written.check


def export_into(folder: Path, examples: Examples, what: str, console: Console) -> Check:
    """Add `model.onnx` for the task head to a folder that we wrote, checked on `examples`; says what was found.

    what: the examples are, for people. Raises UserError as `export_folder` does, and when the extra is not installed.
    """
    loaded = modelfolder.load_model(folder)
    rows = examples.take(np.arange(min(ROWS, len(examples))))
    written = write(loaded, _head(loaded, None), list(evaluation_batches(rows, MAX_TOKENS)), what)
    meta = loaded.meta.model_copy(update={"notes": (*loaded.meta.notes, written.note)})
    modelfolder.annotate(folder, meta, beside=written.files)
    console.result(f"{written.check.sentence()}; wrote {folder / FILE}, {len(written.content) / 1e6:.1f} MB")
    return written.check


@dataclass(frozen=True)
class Written:
    """An ONNX file that passed its check. record: what is written beside it."""

    content: bytes
    record: dict[str, Any]
    check: Check

    @property
    def note(self) -> str:
        """For the model card."""
        return f"{FILE}: {self.record['precision']}, opset {self.record['opset']}; {self.check.sentence()}"

    @property
    def files(self) -> dict[str, bytes]:
        """By name, as they lie in a model folder."""
        return {FILE: self.content, RECORD: json.dumps(self.record, indent=2).encode()}


def write(
    loaded: LoadedModel,
    head: str | None,
    batches: Sequence[Batch],
    what: str,
    *,
    opset: int = OPSET,
    portable: bool = False,
) -> Written:
    """The file of one head. Raises UserError for what the writer cannot express, and where the file computes otherwise
    than the model, which for a quantized one is the model with rounded numbers, not the float one that it came from."""
    source = modelfolder.fingerprint(loaded.path)
    notes = {"compress.version": __version__, "compress.source": source, "compress.head": head or BARE}
    content = encode(loaded.model, head, opset=opset, portable=portable, notes=notes).SerializeToString()
    error = quantization_error(loaded.model, head, batches)
    expected, found = model_answer(loaded.model, head), file_answer(OnnxSession(content))
    check = compare(expected, found, batches, what, TOLERANCE, error)
    if check.complaint is not None:
        raise UserError(
            f"the ONNX file is {check.complaint}", where=str(loaded.path), why="nothing was written", code=ExitCode.DATA
        )
    record = {
        "file": FILE, "sha256": hashlib.sha256(content).hexdigest(), "opset": opset, "head": head or BARE,
        "precision": precision_of(loaded.model), "model": source, "check": vars(check),
    }  # fmt: skip
    return Written(content, record, check)


def _head(loaded: LoadedModel, asked: str | None) -> str | None:
    if asked is None:
        return "task" if "task" in loaded.heads else None
    if asked == BARE:
        return None
    if asked not in loaded.heads:
        has = ", ".join([*loaded.heads, BARE])
        raise UserError(f"the model has no '{asked}' head", where="--head", why=f"it has: {has}")
    return asked


def _rows(loaded: LoadedModel, split: str, options: RunOptions, console: Console) -> tuple[list[Batch], str]:
    """What the file is checked on: rows of the data that the options name, else random tokens."""
    if any(o.path == "data.source" for o in options.overrides):
        predictor = Predictor(loaded.path)
        recipe, table = labelled(modelfolder.inspect(loaded.path), options, console)
        assert recipe.data is not None
        examples = predictor.encode_rows(table.split(split), max_length=recipe.data.max_length)
        examples = examples.take(np.arange(min(ROWS, len(examples))))
        what = f"{Path(table.name).name}/{split}"  # not a path of this machine
    else:
        examples = mixed_lengths(loaded.config.vocabulary, min(128, loaded.config.max_positions), ROWS)
        what = "random tokens"
    return list(evaluation_batches(examples, MAX_TOKENS)), what


def _times(loaded: LoadedModel, head: str | None, session: OnnxSession, console: Console) -> dict[str, float]:
    """Milliseconds of one sequence in this program and in onnxruntime, timed in turn; told as a table."""
    if head not in ("task", None):
        return {}
    ours, needs = prepare(loaded.model), Needs(logits=head == "task")
    threads, rows, found = torch.get_num_threads(), [], {}
    for length in (n for n in TIMED_LENGTHS if n <= loaded.config.max_positions):
        one = random_rows(loaded.config.vocabulary, np.asarray([length]), np.random.default_rng(0))
        batch = evaluation_batches(one, MAX_TOKENS)[0]
        torch_ms, onnx_ms = measure_interleaved([lambda b=batch: ours(b, needs), lambda b=batch: session.run(b)])
        found |= {f"torch_{length}": torch_ms.p50, f"onnxruntime_{length}": onnx_ms.p50}
        busy = " (busy machine)" if torch_ms.contaminated or onnx_ms.contaminated else ""
        rows.append((f"1 x {length}", f"{torch_ms.p50:.2f} ms", f"{onnx_ms.p50:.2f} ms{busy}"))
    console.table(
        f"latency p50, {threads} threads, {precision_of(loaded.model)}",
        ("tokens", "compress (torch)", "onnxruntime"),
        rows,
    )
    return found

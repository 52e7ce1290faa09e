"""`compress export`: a model folder in, one out that holds an ONNX file too, checked and timed before it is written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

from compress.console import Console
from compress.contracts import Batch, Needs, RunOptions
from compress.data.batches import evaluation_batches
from compress.data.random_rows import mixed_lengths, random_rows
from compress.encoder.inference import prepare
from compress.errors import ExitCode, UserError
from compress.export.check import ROWS, Check
from compress.export.deployed import FILE
from compress.export.precision import precision_of
from compress.export.session import OnnxSession
from compress.export.writing import Writer, head_asked, write
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel, Parent
from compress.modelnames import resolve
from compress.predictor import MAX_TOKENS, Predictor
from compress.standalone import labelled
from evaluation.cost.latency import measure_interleaved

TIMED_LENGTHS = (32, 128)


def export_folder(
    name: str, head: str | None, opset: int, split: str, options: RunOptions, *, portable: bool = False,
    by: Writer = "compress",
) -> Check:  # fmt: skip
    """Write `options.output`: the model called `name` with `model.onnx` beside its weights.

    head: whose answer the file gives, "none" for the bare encoder's states, None for the task's where there is one.
    portable: see `encode`.  by: who writes the file.
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
    chosen = head_asked(loaded, head)
    parent = Parent(role="base", name=folder.name, fingerprint=modelfolder.fingerprint(folder))
    console.note(f"writing {folder.name} as ONNX, opset {opset}")
    batches, what = _rows(loaded, split, options, console)
    written = write(loaded, chosen, batches, what, opset=opset, portable=portable, by=by)
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

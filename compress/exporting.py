"""`compress export`: a model folder in, one out that holds an ONNX file too, checked and timed before it is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from compress import __version__
from compress.console import Console
from compress.contracts import Batch, Needs, RunOptions
from compress.data.batches import evaluation_batches
from compress.encoder.inference import prepare
from compress.encoder.model import Model
from compress.errors import ExitCode, UserError
from compress.export.deployed import FILE, RECORD
from compress.export.encoder import encode
from compress.export.session import OnnxSession
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel, Parent
from compress.modelnames import resolve
from compress.predictor import MAX_TOKENS, Predictor
from compress.standalone import labelled, mixed_lengths, random_rows
from evaluation.cost.latency import measure_interleaved

BARE = "none"
ROWS = 256
TOLERANCE = 1e-4  # of the largest number that the model gives; two fp32 runtimes differ by a tenth of it
TIMED_LENGTHS = (32, 128)


@dataclass(frozen=True)
class Check:
    """The file against the model on real rows. difference: largest, absolute.  largest: number that the model gave.
    agreement: share of answers with the same largest entry."""

    rows: int
    what: str
    difference: float
    largest: float
    agreement: float

    def sentence(self) -> str:
        return (
            f"checked on {self.rows} rows of {self.what}: largest difference {self.difference:.1e}, "
            f"agreement {100 * self.agreement:.1f} %"
        )


def export_folder(name: str, head: str | None, opset: int, split: str, options: RunOptions) -> Check:
    """Write `options.output`: the model called `name` with `model.onnx` beside its weights.

    head: whose answer the file gives, "none" for the bare encoder's states, None for the task's where there is one.
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
    notes = {"compress.version": __version__, "compress.source": parent.fingerprint, "compress.head": chosen or BARE}
    console.note(f"writing {folder.name} as ONNX, opset {opset}")
    content = encode(loaded.model, chosen, opset=opset, notes=notes).SerializeToString()
    session = OnnxSession(content)
    batches, what = _rows(loaded, split, options, console)
    check = compare(loaded.model, chosen, session, batches, what)
    if not check.difference <= TOLERANCE * max(1.0, check.largest):
        raise UserError(
            f"the ONNX file is {check.difference:.1e} away from the model",
            where=str(folder),
            why=f"at most {TOLERANCE * max(1.0, check.largest):.1e} is allowed; nothing was written",
            code=ExitCode.DATA,
        )
    console.result(check.sentence())
    times = _times(loaded, chosen, session, console)
    record = {
        "file": FILE, "sha256": hashlib.sha256(content).hexdigest(), "opset": opset, "head": chosen or BARE,
        "precision": "fp32", "model": parent.fingerprint, "check": vars(check), "latency_ms": times,
    }  # fmt: skip
    meta = loaded.meta.model_copy(
        update={"lineage": (parent,), "notes": (*loaded.meta.notes, f"{FILE}: fp32, opset {opset}; {check.sentence()}")}
    )
    beside = {FILE: content, RECORD: json.dumps(record, indent=2).encode()}
    files = loaded.tokenizer_files
    modelfolder.save_model(options.output, loaded.model, tokenizer_files=files, meta=meta, beside=beside)
    console.result(f"wrote {options.output / FILE}, {len(content) / 1e6:.1f} MB")
    console.document({"folder": str(options.output), **record, "bytes": len(content)})
    return check


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
        examples = mixed_lengths(loaded.config.vocabulary, min(128, loaded.config.max_positions))
        examples, what = examples.take(np.arange(ROWS)), "random tokens"
    return list(evaluation_batches(examples, MAX_TOKENS)), what


def compare(model: Model, head: str | None, session: OnnxSession, batches: Sequence[Batch], what: str) -> Check:
    """Both on the same rows: the model on packed tokens in fp32, the file on padded ones."""
    difference = largest = 0.0
    same = count = rows = 0
    needs = Needs(
        logits=head == "task", pair_logits=head == "pair", replaced=head == "rtd", mlm="all" if head == "mlm" else None
    )
    for batch in batches:
        with torch.inference_mode():
            output = model(batch, needs)
            vocabulary = None if output.vocabulary is None else output.vocabulary.logits()
        wanted = {"task": output.logits, "pair": output.pair_logits, "rtd": output.replaced, "mlm": vocabulary}
        expected = output.last_hidden if head is None else wanted[head]
        assert expected is not None
        left, right = _answer(session.run(batch)), expected.numpy()
        difference = max(difference, float(np.abs(left - right).max()))
        largest = max(largest, float(np.abs(right).max()))
        if right.ndim == 1 or right.shape[-1] == 1:
            left, right = np.stack([left, -left], -1), np.stack([right, -right], -1)
        same += int((left.argmax(-1) == right.argmax(-1)).sum())
        count += right[..., 0].size
        rows += batch.rows
    return Check(rows, what, difference, largest, same / count)


def _answer(found: dict[str, np.ndarray]) -> np.ndarray:
    if "start_logits" in found:
        return np.stack([found["start_logits"], found["end_logits"]], axis=-1)
    return found["logits"] if "logits" in found else found["last_hidden_state"]


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
    console.table(f"latency p50, {threads} threads, fp32", ("tokens", "compress (torch)", "onnxruntime"), rows)
    return found

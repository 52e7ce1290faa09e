"""`compress export`: a model folder in, one out for another program, checked before it is written."""

from __future__ import annotations

import dataclasses
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compress.console import Console
from compress.contracts import Batch, Needs, RunOptions
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.tables.random_rows import draw_mixed_rows, draw_random_rows
from compress.data.text.tokenizer_files import complete
from compress.encoder.infer.prepare import prepare
from compress.errors import UserError, format_count
from compress.measure.labelled import open_labelled
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.family import QUANTIZED, choose, stock_heads
from compress.modelfolder.folder import LoadedModel, Parent
from compress.modelfolder.names import model_label
from compress.modelfolder.push import HubRepository, push_and_print
from compress.modelfolder.resolve import resolve
from compress.modelfolder.sentence_files import sentence_files
from compress.modelfolder.sentence_pooling import read_max_length
from compress.onnx.check import ROWS, Check, ReferenceOutputs, compute_reference, file_answer
from compress.onnx.gpu_session import open_on_gpu
from compress.onnx.model_file import FILE, require_publishable
from compress.onnx.openvino_session import FILES as OPENVINO
from compress.onnx.openvino_session import OpenVinoSession, written_for_openvino
from compress.onnx.precision import precision_of
from compress.onnx.runtimes import versions
from compress.onnx.session import OnnxSession
from compress.onnx.stock import stock_answer
from compress.onnx.writer import RANDOM, Writer, WrittenFile, choose_head, write_as_saved
from compress.predict.predictor import MAX_TOKENS, Predictor
from compress.predict.service import columns_of
from compress.run.folder import new_output
from compress.storage import atomic
from compress.tracking.pyfunc import write_pyfunc
from compress.training.gpu import find_obstacle
from evaluation.cost.latency import measure_interleaved

TIMED_LENGTHS = (32, 128)


def export_folder(
    name: str,
    head: str | None,
    opset: int | None,
    split: str,
    options: RunOptions,
    *,
    portable: bool = False,
    by: Writer = "compress",
    openvino: bool = False,
) -> Check:
    """Write `options.output`: the model called `name` with `model.onnx` beside its weights.

    openvino: with OpenVINO's own form of that file too, checked on the same rows.

    head: whose answer the file gives, "none" for the bare encoder's states, None for the task's where there is one.
    opset: None for the oldest that the writer has.  portable: see `encode`.  by: who writes the file.
    How the folder turns a text into a vector (`modelfolder.sentence_files`) is kept.
    Raises UserError for a head that the model has not, for what the writer cannot express, when the file does not
    compute what the model computes, and when there is no output or it exists already.
    """
    target = new_output(options)
    console = Console(quiet=options.quiet, json=options.json)
    repository = HubRepository.requested(options)
    folder = resolve(name)
    loaded = modelfolder.load_model(folder, exits=True)
    chosen = choose_head(loaded, head)
    parent = Parent(role="base", name=model_label(folder), fingerprint=modelfolder.fingerprint(folder))
    carried, longest = sentence_files(folder, loaded.config), read_max_length(folder)
    files = complete(loaded.tokenizer_files, str(folder))
    console.note(f"writing {model_label(folder)} as ONNX" + ("" if opset is None else f", opset {opset}"))
    batches, what = rows_to_check(loaded, split, options, console)
    how: dict[str, Any] = {"opset": opset, "portable": portable, "by": by, "reads": longest}
    written = write_as_saved(loaded, files, loaded.meta, chosen, batches, what, **how)
    for line in (*written.findings, *_check_on_gpu(loaded, written, folder)):
        console.result(line)
    times = _times(loaded, chosen, OnnxSession(written.content), console)
    written = dataclasses.replace(written, record={**written.record, "latency_ms": times})
    notes = (*loaded.meta.notes, written.note)
    meta = loaded.meta.model_copy(update={"lineage": (parent,), "notes": notes})
    beside = written.files | carried
    if openvino:
        beside |= written_for_openvino(written.content)
        _require_same(written.expected, beside, folder, console)
    modelfolder.save_model(target, loaded.model, tokenizer_files=files, meta=meta, beside=beside, reads=longest)
    console.result(f"wrote {target / FILE}, {len(written.content) / 1e6:.1f} MB")
    if openvino:
        console.result(f"wrote {target / OPENVINO[0]}")
    push_and_print(
        console, {"folder": str(target), **written.record, "bytes": len(written.content)}, target, repository
    )
    return written.check


def export_stock(name: str, split: str, options: RunOptions) -> None:
    """Write `options.output`: the model as a folder that transformers loads unmodified.

    Where transformers is installed, its class answers the same rows and must agree. Raises UserError for a model that
    no stock class computes (saying why), when they disagree, and when there is no output or it exists already.
    """
    target = new_output(options)
    console = Console(quiet=options.quiet, json=options.json)
    repository = HubRepository.requested(options)
    folder = resolve(name)
    loaded = modelfolder.load_model(folder)
    if loaded.config.is_static:
        raise UserError(
            "no class of transformers computes a static model", where=str(folder),
            do="use the folder itself: SentenceTransformer(folder) and model2vec load it",
        )  # fmt: skip
    _, objection = choose(loaded.config, loaded.heads, loaded.family)
    if objection or loaded.config.quantization is not None:
        raise UserError(
            "no class of transformers computes this model",
            where=str(folder),
            why=objection or QUANTIZED,
            do="use --to onnx or --to pyfunc",
        )
    carried = sentence_files(folder, loaded.config)
    kind, checked = _stock_checked(loaded, target.name, split, options, console)
    modelfolder.save_model(
        target,
        loaded.model,
        tokenizer_files=complete(loaded.tokenizer_files, str(folder)),
        meta=loaded.meta,
        beside=carried,
        reads=read_max_length(folder),
    )
    console.result(f"wrote {target}; transformers loads it as {kind}")
    push_and_print(console, {"folder": str(target), "class": kind, "check": checked}, target, repository)


def _stock_checked(
    loaded: LoadedModel, name: str, split: str, options: RunOptions, console: Console
) -> tuple[str | None, dict[str, Any] | None]:
    """(the class that transformers loads it as, what its answers were compared to), before anything is written."""
    batches, what = rows_to_check(loaded, split, options, console)
    with tempfile.TemporaryDirectory() as scratch:
        files = loaded.tokenizer_files
        trial = modelfolder.save_model(Path(scratch) / name, loaded.model, tokenizer_files=files, meta=loaded.meta)
        kind = modelfolder.inspect(trial).stock_class
        try:
            answer = stock_answer(trial, loaded)
        except ImportError:
            console.note("transformers is not installed: its outputs were not compared")
            return kind, None
        head = "task" if "task" in stock_heads(loaded.heads) else None
        check = compute_reference(loaded.model, head, batches, what).check(answer)
    check.require(str(kind), str(loaded.path))
    console.result(check.sentence())
    return kind, vars(check)


def export_pyfunc(name: str, options: RunOptions) -> None:
    """Write `options.output`: an MLflow model of the flavour python_function, which holds a copy of the model's folder.

    Raises UserError when there is no output or it exists already, and for a model without a task head.
    """
    target = new_output(options)
    console = Console(quiet=options.quiet, json=options.json)
    folder = resolve(name)
    require_publishable(folder)
    columns = columns_of(folder)
    write_pyfunc(folder, target, columns)
    console.result(
        f"wrote {target}; input columns: {', '.join(n if must else f'{n} (optional)' for n, must in columns)}"
    )
    console.result(f"serve it mlflow models serve -m {shlex.quote(str(target))} --env-manager local --port 5001")
    console.document({"folder": str(target), "columns": [{"name": n, "required": must} for n, must in columns]})


def _check_on_gpu(loaded: LoadedModel, written: WrittenFile, where: Path) -> list[str]:
    """Raise UserError unless onnxruntime's CUDA provider answers as the model does, where both are there; what was
    found, for people."""
    if loaded.config.quantization is not None or versions()["onnxruntime-cuda"] is None or find_obstacle() is not None:
        return []
    try:
        session = open_on_gpu(written.content, "onnxruntime-cuda", precision="fp32")
    except UserError as problem:
        return [f"not checked on the GPU: {problem.what}"]
    check = written.expected.check(file_answer(session))
    check.require("the file in onnxruntime-cuda", str(where))
    return [f"onnxruntime-cuda: {check.sentence()}"]


def _require_same(expected: ReferenceOutputs, files: Mapping[str, bytes], where: Path, console: Console) -> None:
    """Raise UserError unless OpenVINO's own form of the file answers as the model does."""
    with tempfile.TemporaryDirectory() as scratch:
        for part in OPENVINO:
            atomic.write_bytes(Path(scratch) / part, files[part])
        check = expected.check(file_answer(OpenVinoSession(Path(scratch) / OPENVINO[0])))
    check.require("the OpenVINO file", str(where))
    console.result(f"OpenVINO: {check.sentence()}")


def rows_to_check(loaded: LoadedModel, split: str, options: RunOptions, console: Console) -> tuple[list[Batch], str]:
    """(batches, what they are): what a file is checked on, rows of the data that the options name, else random
    tokens."""
    if any(o.path == "data.source" for o in options.overrides):
        predictor = Predictor(loaded.path)
        recipe, table = open_labelled(modelfolder.inspect(loaded.path), options, console)
        assert recipe.data is not None
        examples = predictor.encode_rows(table.split(split), max_length=recipe.data.max_length)
        examples = examples.take(np.arange(min(ROWS, len(examples))))
        what = f"{table.display_name}/{split}"
    else:
        config = loaded.config
        # transformers' RoBERTa gives the padding id no position, wherever it stands
        examples = draw_mixed_rows(config.vocabulary, min(128, config.max_positions), ROWS, without=config.pad_id)
        what = RANDOM
    return list(evaluation_batches(examples, MAX_TOKENS)), what


def _times(loaded: LoadedModel, head: str | None, session: OnnxSession, console: Console) -> dict[str, float]:
    """Milliseconds of one sequence in this program and in onnxruntime, timed in turn; told as a table."""
    if head not in ("task", None) or loaded.model.exits:  # what random tokens cost there says nothing of texts
        return {}
    ours, needs = prepare(loaded.model), Needs(logits=head == "task")
    threads, rows, found = torch.get_num_threads(), [], {}
    for length in (n for n in TIMED_LENGTHS if n <= loaded.config.max_positions):
        one = draw_random_rows(loaded.config.vocabulary, np.asarray([length]), np.random.default_rng(0))
        batch = evaluation_batches(one, MAX_TOKENS)[0]
        calls = [lambda b=batch: ours(b, needs), lambda b=batch: session.run(b)]
        with console.slow_progress(f"timing 1 x {length} tokens", None, "rounds") as progress:
            torch_ms, onnx_ms = measure_interleaved(calls, device="cpu", told=progress.update)
        found |= {f"torch_{length}": torch_ms.p50, f"onnxruntime_{length}": onnx_ms.p50}
        busy = " (busy machine)" if torch_ms.contaminated or onnx_ms.contaminated else ""
        rows.append((f"1 x {length}", f"{torch_ms.p50:.2f} ms", f"{onnx_ms.p50:.2f} ms{busy}"))
    console.table(
        f"latency p50, {format_count(threads, 'thread')}, {precision_of(loaded.model)}",
        ("tokens", "compress (torch)", "onnxruntime"),
        rows,
    )
    return found

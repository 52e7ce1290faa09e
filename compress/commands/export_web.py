"""`compress export --to web`: a model folder in, a folder with a page out that runs the model in a browser."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from compress.commands.export import rows_to_check
from compress.console import Console
from compress.contracts import RunOptions
from compress.data.text.tokenizer_files import complete
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.names import model_label
from compress.modelfolder.resolve import resolve
from compress.modelfolder.sentence_files import sentence_files
from compress.modelfolder.sentence_pooling import read_max_length
from compress.onnx.precision import FLOAT
from compress.onnx.writer import write
from compress.predict.web.folder import PAGE, WEB_TASKS, make_web_files, require_web_task
from compress.run.folder import new_output
from compress.storage import atomic


def export_web(name: str, split: str, options: RunOptions) -> None:
    """Write `options.output`: the ONNX file and the tokenizer as transformers.js reads them, and a page.

    The file is checked as by `export_folder`. Raises UserError for a kind of task that the page does not support, when
    the file does not compute what the model computes, and when there is no output or it exists already.
    """
    target = new_output(options)
    console = Console(quiet=options.quiet, json=options.json)
    folder = resolve(name)
    loaded = modelfolder.load_model(folder, exits=True)
    task = require_web_task(loaded)
    console.note(f"writing {model_label(folder)} for browsers")
    batches, what = rows_to_check(loaded, split, options, console)
    with tempfile.TemporaryDirectory(prefix="compress-export-") as scratch:
        saved = modelfolder.save_model(
            Path(scratch) / target.name,
            loaded.model,
            tokenizer_files=complete(loaded.tokenizer_files, str(folder)),
            meta=loaded.meta,
            beside=sentence_files(folder, loaded.config),
            reads=read_max_length(folder),
        )
        ours = modelfolder.load_model(saved, exits=True)
        written = write(ours, "task", batches, what, where=folder)
        files = make_web_files(ours, task, written, model_label(folder))
    for line in written.findings:
        console.result(line)
    size = sum(map(len, files.values()))
    with atomic.new_folder(target, needed=size) as temp:
        for file, data in files.items():
            atomic.write_bytes(temp / file, data)
    console.result(f"wrote {target / PAGE}, {size / 1e6:.1f} MB with the model")
    if written.record["precision"] == FLOAT and not ours.model.exits:
        console.note("the model is not quantized; `compress quantize` makes a file of about a quarter of the size")
    console.result(f"open it cd {shlex.quote(str(target))} && npm install && python -m http.server")
    console.document(
        {"folder": str(target), "task": task.kind, "pipeline": WEB_TASKS[task.kind].pipeline, "bytes": size}
        | {"check": written.record["check"]}
    )

"""`compress analyze`: what the layers of a model compute, and how that differs from the model it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compress.analyze.isotropy import measure_isotropy
from compress.analyze.probes import probe_layers
from compress.analyze.quantization import measure_quantization
from compress.analyze.sentence_vectors import VectorOptions, report_sentence_vectors, save
from compress.analyze.similarity import measure_similarity
from compress.analyze.subject import Analysis, encode_split, open_subject, table_of
from compress.console import Console
from compress.contracts import RunOptions
from compress.data.tables.table import Table
from compress.encoder.config.unsupported import refuse_quantized, refuse_static
from compress.errors import ExitCode, UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.names import label_models, model_label
from compress.modelfolder.resolve import resolve
from compress.predict.embedder import Embedder
from compress.report.rows import markdown
from compress.run.folder import RUNS
from compress.storage import atomic
from compress.tracking import TrackedRun, open_requested_run
from evaluation.representation.hsic import UndefinedError


def analyze(
    model: str,
    against: str | None,
    probes: Sequence[str],
    rows: int,
    wanted: VectorOptions,
    options: RunOptions,
    *,
    rounded: bool = False,
) -> Analysis:
    """Look at a model on the texts of `--data`, print, write and track what was found.

    against: the model that it was made from.  probes: labelled data, each a probe at every layer.  rows: texts read.
    wanted: what becomes of the vectors of texts, and where the model that makes them is written.
    rounded: tell what quantizing would do to its matrices.
    Raises UserError for data and models that do not fit, and a folder that is there.
    """
    console = Console(quiet=options.quiet, json=options.json)
    folder = resolve(model, options.tracking_uri)
    output = options.output or RUNS / f"analyze-{model_label(folder).replace('/', '-')}"
    if output.exists():
        raise UserError(
            "the output folder exists", where=f"--output {output}", do="name a new folder", code=ExitCode.REFUSED
        )
    if wanted.folder is not None and wanted.folder.exists():
        where = f"--save-embedder {wanted.folder}"
        raise UserError("the folder exists", where=where, do="name a new folder", code=ExitCode.REFUSED)
    atomic.require_writable(output, wanted.folder)
    places = [folder] if against is None else [folder, resolve(against, options.tracking_uri)]
    names = label_models(places)
    one = open_subject(folder, names[0], options, console.slow_progress)
    refuse_static(one.loaded.config, "analyze", str(folder))
    if rounded:
        refuse_quantized(one.loaded.config, "--quantization", str(folder))
    other = None if against is None else open_subject(places[1], names[1], options)
    if other is not None and not modelfolder.same_vocabulary(folder, other.loaded.path):
        raise UserError(
            "the models have different tokenizers", where="--against", do="name a model with the same tokenizer"
        )
    table = table_of("--data", None, one, options, console)
    examples = encode_split(one, table, "train", rows)
    found = Analysis()
    try:
        measure_similarity(one, other, examples, found)
        measure_isotropy(one, examples, found)
        if rounded:
            measure_quantization(one, examples, found)
        embedder = Embedder(folder, device=options.device)
        evening = report_sentence_vectors(embedder, table, rows, wanted, found, console.slow_progress)
    except UndefinedError as error:
        raise UserError(str(error), where="--data", do="use more text") from None
    for source in probes:
        probe_layers(one, source, options, console, found)
    if wanted.folder is not None:
        written = save(embedder, evening, wanted, table)
        found.lines.append(
            f"sentence embedder ({wanted.description}): {written}; use it with compress predict {written} --embeddings"
        )
    _tell(found, output, one.name, table, options, console)
    return found


def _tell(found: Analysis, output: Path, name: str, table: Table, options: RunOptions, console: Console) -> None:
    with open_requested_run(
        output,
        options,
        method="analyze",
        role="summary",
        warn=console.warn,
    ) as log:
        log.params({"method": "analyze", "model": name})
        log.dataset(f"{table.display_name}/train", table.fingerprint, table.name, "evaluation")
        _write(found, output, log)
    for key, (title, (columns, rows)) in found.tables.items():
        most = found.shown.get(key, len(rows))
        if most and not key.startswith("cka") and key != "cosines":  # matrices are plots
            more = f", first {most} of {len(rows)}" if most < len(rows) else ""
            console.table(title + more, columns, rows[:most])
    for line in [*found.lines, f"plots and tables: {output}"]:
        console.result(line)
    shown = {key: {"columns": list(t[0]), "data": [list(r) for r in t[1]]} for key, (_, t) in found.tables.items()}
    console.document({"folder": str(output), "tables": shown, "notes": found.lines})


def _write(found: Analysis, output: Path, log: TrackedRun) -> None:
    for key, svg in found.plots.items():
        atomic.write_text(output / f"{key}.svg", svg)
        log.artifact(output / f"{key}.svg")
    for key, (_, (columns, rows)) in found.tables.items():
        log.table(output / f"{key}.json", columns, rows)
    log.metrics(found.values)
    told = [
        f"### {title}\n\n{markdown(columns, rows[: found.shown.get(k, len(rows))])}"
        for k, (title, (columns, rows)) in found.tables.items()
        if not k.startswith("c") and found.shown.get(k) != 0
    ]
    log.note("\n\n".join([*told, *found.lines]))

"""`compress evaluate --vectors`: an embedding model's vectors with fewer dimensions, and as int8 and binary codes."""

from __future__ import annotations

import json
from pathlib import Path

from compress.console import Console
from compress.contracts import RunOptions
from compress.data.tasks import task_of
from compress.data.tasks.embedding import SPEARMAN, Task
from compress.errors import UserError, did_you_mean
from compress.measure.labelled import open_labelled
from compress.measure.stored_vectors import StoredFigures, measure_stored_vectors, metric_of
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.names import model_label
from compress.modelfolder.resolve import resolve
from compress.modelfolder.sentence_head import EMBEDDING
from compress.predict.fastest import get_requested_runtime
from compress.predict.predictor import Predictor
from compress.report.rows import title
from compress.run.folder import new_output
from compress.stages.shared.labelled_data import settings_for
from compress.storage import atomic
from evaluation.quality.compact_vectors import KINDS, Kind

FILE = "vectors.json"


def read_kinds(text: str) -> tuple[Kind, ...]:
    """`int8,binary` → kinds. Raises UserError."""
    known: dict[str, Kind] = {kind: kind for kind in KINDS}
    found: list[Kind] = []
    for name in (part.strip() for part in text.split(",")):
        if name not in known:
            raise UserError(f"no way to store vectors is called '{name}'", where="--vectors",
                            do=did_you_mean(name, KINDS))  # fmt: skip
        found.append(known[name])
    return tuple(found)


def evaluate_vectors(
    model: str,
    against: str | None,
    split: str,
    bootstrap: int,
    kinds: tuple[Kind, ...],
    dimensions: tuple[int, ...],
    options: RunOptions,
) -> list[StoredFigures]:
    """Print a table: bytes of a vector, quality and time of a search for each kind at each width.

    dimensions: empty for all of the model's.  options.output: a new folder for the figures and the ranges of int8
    codes. Raises UserError for a model that gives no vectors, and for more dimensions than it has.
    """
    if options.output is not None:
        new_output(options)
    console = Console(quiet=options.quiet, json=options.json)
    folder = resolve(model, options.tracking_uri)
    info = modelfolder.inspect(folder)
    width = _require_vectors(info, folder)
    for size in dimensions:
        if not 1 <= size <= width:
            why = f"the vectors of {folder} have {width} dimensions"
            raise UserError(f"{size} dimensions", where="--dimensions", why=why, do=f"give 1 to {width}")
    recipe, table = open_labelled(info, options, console, measured=split)
    assert recipe.data is not None
    rows, settings = table.split(split), settings_for(recipe, table)
    task = task_of(table.task, {**info.meta.task_settings, **settings})
    if not isinstance(task, Task):
        raise UserError(
            f"the data is for {table.task}", where="--vectors", do="give texts, pairs with a score or a search"
        )
    metric = metric_of(rows, task.metric_of(rows))
    similarity = "cosine" if metric == SPEARMAN else task.check_similarity()

    def embed(where: Path):
        predictor = Predictor(where, device=options.device, task=table.task, settings=settings,
                              runtime=get_requested_runtime(options))  # fmt: skip
        assert recipe.data is not None
        examples = predictor.encode_rows(rows, max_length=recipe.data.max_length)
        with console.slow_progress(f"{model_label(where)}: vectors", len(examples), "texts") as progress:
            return predictor.logits(examples, told=progress.update)

    parent = None
    if against is not None:
        named = resolve(against, options.tracking_uri)
        _require_vectors(modelfolder.inspect(named), named)
        parent = embed(named)
    found = []
    sizes = dimensions or (width,)
    for row in measure_stored_vectors(
        embed(folder), rows, metric, kinds, sizes, parent=parent, similarity=similarity, resamples=bootstrap
    ):  # fmt: skip
        console.note(f"{row.kind}, {row.dimensions} dimensions: {row.bytes_per_vector:,} bytes")
        found.append(row)
    columns = ("vectors", "dimensions", "bytes", title(metric), "change", "search ms / million")
    console.table(model_label(folder), columns, [_cells(row) for row in found])
    ranked = "cosine" if similarity == "cosine" else "dot product, as the folder says"
    console.result(
        f"Queries are floats; vectors are compared by {ranked}. A binary search finds 4 candidates per result, which "
        "are then rescored. Times are upper bounds on a busy machine."
    )
    document = {"metric": metric, "split": split, "vectors": [row.as_json() for row in found]}
    console.document(document)
    if options.output is not None:
        with atomic.new_folder(options.output) as temp:
            atomic.write_text(temp / FILE, json.dumps(document, indent=2) + "\n")
        console.result(f"figures and int8 ranges: {options.output / FILE}")
    return found


def _require_vectors(info: modelfolder.FolderInfo, folder: Path) -> int:
    """Width of the model's vectors."""
    head = info.heads.get("task")
    if head is None or head.kind != EMBEDDING:
        raise UserError(
            "--vectors needs a model for sentence embeddings",
            where=str(folder),
            do="give a sentence-transformers folder",
        )
    return head.labels


def _cells(row: StoredFigures) -> tuple[str, ...]:
    q, d = row.quality, row.difference
    change = "" if d is None else f"{d.value:+.4f} [{d.low:+.4f}, {d.high:+.4f}]"
    quality = f"{q.value:.4f} [{q.low:.4f}, {q.high:.4f}]"
    return (
        row.kind, str(row.dimensions), f"{row.bytes_per_vector:,}", quality, change,
        f"{row.milliseconds:,.1f}",
    )  # fmt: skip

"""`compress predict`: texts, or questions about contexts, in; one line each out, an answer or a vector."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from compress.console import Console
from compress.contracts import RunOptions
from compress.data.reading.remote import Place, RemotePath
from compress.data.tasks import question_answering
from compress.errors import UserError
from compress.modelfolder.cascade import inspect
from compress.predict.ranking import check_ranks, rank_documents
from compress.predict.rows.answers import Answerer, ModelRequest, PredictionAnswerer
from compress.predict.rows.inputs import (
    DOCUMENTS,
    PredictionInput,
    Reject,
    Row,
    TextColumns,
    join_answer,
    require_texts,
    stop_at,
)
from compress.predict.rows.reading import LineCounter, find_kind, has_objects, holds_texts, list_files, read_rows
from compress.predict.rows.windows import divide
from compress.storage.lines import new_lines, write_line


def predict_texts(
    request: ModelRequest,
    texts: Sequence[str],
    pairs: Sequence[str],
    file: Place | None,
    options: RunOptions,
    *,
    questions: Sequence[str] = (),
    contexts: Sequence[str] = (),
    bad_rows: Path | None = None,
) -> None:
    """Answer what comes from the command line, a file, a folder or standard input; writes to stdout as it goes.

    questions, contexts: for a model that answers questions; one context serves all of them.  bad_rows: a new file for
    the rows that cannot be read; None: the first one is an error. Raises UserError when there is nothing to answer, or
    texts and second texts do not match, and for an empty text.
    """
    given = _given(texts, pairs, questions, contexts, file, None if request.embeddings else request.folder)
    console = Console(quiet=options.quiet, json=options.json)
    answerer = request.open(console)
    with ExitStack() as stack:
        reject = stop_at
        if bad_rows is not None:
            rejected = stack.enter_context(new_lines(bad_rows))
            reject = lambda bad: rejected.write(json.dumps(bad.as_json(), ensure_ascii=False), flush=True)  # noqa: E731
        lenient = bad_rows is not None
        source = iter(given) if file is None else read_all(list_files(file), answerer.columns, lenient=lenient)
        if file is not None and not file.is_dir() and holds_texts(file, answerer.columns):
            source = _warn_of_objects(source, console)
        write_answers(answerer, source, file or len(given), options, reject)


def rank_texts(
    request: ModelRequest, query: str, texts: Sequence[str], file: Place | None, options: RunOptions, top: int | None
) -> None:
    """Sort documents of the command line, a file, a folder or standard input for a query; writes a line for each.

    top: how many of them; None: all. Raises UserError for an empty query or text, and for a model that compares no
    texts.
    """
    given = _given(texts, (), (), (), file)
    require_texts("--query", [query])
    console = Console(quiet=options.quiet, json=options.json)
    answerer = request.open(console)
    assert isinstance(answerer, PredictionAnswerer)
    check_ranks(answerer.predictor)
    columns = DOCUMENTS.renamed(request.text_column, None).keep(request.kept)
    rows = given if file is None else read_all(list_files(file), columns)
    found = [one for window in divide(rows) for one in window]
    with console.slow_progress("rank", len(found), "documents") as progress:
        ranked = rank_documents(
            answerer.predictor, query, [one.text for one in found], top=top, told=progress.update
        )  # fmt: skip
    for one in ranked:
        beside = found[one.index].beside
        line = json.dumps(join_answer(beside, one.as_json()), ensure_ascii=False) if options.json else one.line()
        write_line(sys.stdout, line)


def read_all(files: Iterable[Place], columns: TextColumns, *, lenient: bool = False) -> Iterator[Row | None]:
    """The rows of all files, one file after the other. lenient: as of `read_rows`."""
    return chain.from_iterable(read_rows(file, columns, lenient=lenient) for file in files)


def _warn_of_objects(rows: Iterator[Row | None], console: Console) -> Iterator[Row | None]:
    """The same rows; warns of the first line of plain text that is a JSON object, as where JSON lines are piped in."""
    for row in rows:
        if isinstance(row, PredictionInput) and row.text.startswith("{") and _is_object(row.text):
            console.warn("lines that are JSON objects are predicted as texts; to read their text, add --text-column")
            yield row
            break
        yield row
    yield from rows


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def write_answers(
    answerer: Answerer, rows: Iterable[Row | None], of: int | Place, options: RunOptions, reject: Reject = stop_at
) -> None:
    """Write a line for each row to stdout, in their order, and show progress, but not between answers on a terminal.
    What is written has left this process before the next rows are read.

    of: how many rows, or the file or folder that holds them, which is only counted where progress is shown.
    """
    console = Console(quiet=options.quiet or sys.stdout.isatty(), json=options.json)
    total = of if isinstance(of, int) else _count(of, answerer.columns) if console.shows_progress else None
    done = 0
    with console.slow_progress(answerer.label, total, "rows") as progress:
        for window in divide(rows, stream=str(of) == "-", reject=reject):
            told = lambda count, before=done: progress.update(before + count)  # noqa: E731
            for line in answerer.lines(window, told, as_json=options.json):
                write_line(sys.stdout, line)
            sys.stdout.flush()
            done += len(window)
            progress.update(done)


def _count(place: Place, columns: TextColumns) -> int | None:
    """Rows of a file or folder, where that costs next to nothing: the lines of files of lines; else None."""
    if str(place) == "-" or isinstance(place, RemotePath) or not (place.is_file() or place.is_dir()):
        return None
    total = 0
    for file in list_files(place):
        if find_kind(file) in ("csv", "parquet"):
            return None
        counter = LineCounter(objects=has_objects(file, columns))
        with file.open("rb") as stream:
            total += sum(map(counter.add, stream))
    return total


def _given(
    texts: Sequence[str],
    pairs: Sequence[str],
    questions: Sequence[str],
    contexts: Sequence[str],
    file: Place | None,
    folder: Path | None = None,
) -> list[PredictionInput]:
    """What the command line asks itself. folder: of the model, by whose task it is said what is missing; None: texts
    are."""
    if file is not None and (texts or questions):
        raise UserError("give texts or --file, not both", where="--file")
    if questions and texts:
        raise UserError("give texts or --question, not both", where="--question")
    if pairs and (file is not None or len(pairs) != len(texts)):
        raise UserError(
            f"{len(pairs)} second texts for {len(texts)} texts", where="--pair", do="give --pair once for every text"
        )
    if (questions or contexts) and len(contexts) not in (1, len(questions)):
        raise UserError(
            f"{len(contexts)} contexts for {len(questions)} questions",
            where="--context",
            do="give --context once, or once for every --question",
        )
    if contexts and not questions:
        raise UserError("a context needs a question", where="--context", do="add --question TEXT")
    if file is None and not texts and not questions:
        task = None if folder is None else inspect(folder).meta.task
        if task == question_answering.Task.kind:
            file_of = "--file FILE with a question and its context in each row"
            raise UserError("no question", do=f"add --question TEXT and --context TEXT, or {file_of}")
        raise UserError("no input text", do='give texts, or --file FILE ("-" for standard input)')
    require_texts("text", texts)
    for flag, values in {"--pair": pairs, "--question": questions, "--context": contexts}.items():
        require_texts(flag, values)
    if questions:
        about = list(contexts) * (len(questions) if len(contexts) == 1 else 1)
        return [PredictionInput(question, context) for question, context in zip(questions, about, strict=True)]
    return [PredictionInput(text, pairs[i] if pairs else None) for i, text in enumerate(texts)]

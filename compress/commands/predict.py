"""`compress predict`: texts, or questions about contexts, in; one line each out, an answer or a vector."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import RunOptions
from compress.data.reading import text_files
from compress.data.reading.files import SUFFIXES
from compress.data.reading.pipe import lines_as_they_come
from compress.data.task import Task
from compress.errors import UserError, did_you_mean, printable
from compress.modelfolder.resolve import resolve
from compress.predict.cascade import open_predictor
from compress.predict.embedder import Embedder
from compress.predict.fastest import fastest_for_many_rows, get_requested_runtime
from compress.predict.file_batches import WINDOW
from compress.predict.predictor import Predictor
from compress.predict.service import TEXT, roles_of

AT_ONCE = 1024  # lines of a stream answered together, and the first rows of a file: few enough to answer soon
MOST_CHARACTERS = 1 << 24  # of the rows that are held at once
PART = 1 << 20  # characters that are written at once


@dataclass(frozen=True)
class PredictionInput:
    """One thing to answer. beside: what its answer repeats, so that it can be found again."""

    text: str
    pair: str | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)


def predict_texts(
    model: str,
    texts: Sequence[str],
    pairs: Sequence[str],
    file: Path | None,
    options: RunOptions,
    *,
    questions: Sequence[str] = (),
    contexts: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Answer what comes from the command line, a file or standard input; writes to stdout as it goes.

    questions, contexts: for a model that answers questions; one context serves all of them.  settings: of the task, in
    place of the model's own. Raises UserError when there is nothing to answer, or texts and second texts do not match.
    """
    given = _given(texts, pairs, questions, contexts, file)
    predictor = open_predictor(
        resolve(model),
        device=options.device,
        precision=options.precision,
        settings=settings,
        runtime=get_requested_runtime(options),
    )
    if options.runtime == "auto":
        predictor = fastest_for_many_rows(predictor, Console(quiet=options.quiet, json=options.json))
    source = iter(given) if file is None else read_rows(file, predictor.task)
    write_answers(predictor, source, file or len(given), options)


def write_answers(
    predictor: Predictor, source: Iterator[PredictionInput | None], rows: int | Path, options: RunOptions
) -> None:
    """Write the model's answer to each row of `source` to stdout, in their order. rows: as of `_in_chunks`."""
    task = predictor.task

    def answer(chunk: Sequence[PredictionInput], told: Callable[[int], None]) -> None:
        second = [one.pair for one in chunk if one.pair is not None]
        answers = predictor.predict([one.text for one in chunk], second or None, told=told)
        for one, answer in zip(chunk, answers, strict=True):
            if options.json:
                row = {**one.beside, task.asked_as: one.text, **answer.as_json()}
                _write(json.dumps(row, ensure_ascii=False))
            else:
                _write(answer.line(one.text))

    _in_chunks(source, answer, "predict", rows, options)


def embed_texts(model: str, texts: Sequence[str], file: Path | None, options: RunOptions) -> None:
    """Write the vector of each text from the command line, a file or standard input, as it goes.

    Pooled and post-processed as the model's folder says. Raises UserError when there is nothing to read.
    """
    if options.runtime not in (None, "torch"):
        raise UserError("embeddings are only computed with torch", where=f"--runtime {options.runtime}", do="remove it")
    given = _given(texts, (), (), (), file)
    source = iter(given) if file is None else _read_texts(file)
    embedder = Embedder(resolve(model), device=options.device, precision=options.precision)

    def embed(chunk: Sequence[PredictionInput], told: Callable[[int], None]) -> None:
        for one, vector in zip(chunk, embedder([one.text for one in chunk], told), strict=True):
            if options.json:
                row = {**one.beside, "text": one.text, "embedding": [float(f"{value:.7g}") for value in vector]}
                _write(json.dumps(row, ensure_ascii=False))
            else:
                _write(" ".join(f"{value:.6g}" for value in vector) + "\t" + printable(one.text, 200))

    _in_chunks(source, embed, "embed", file or len(given), options)


def _write(line: str) -> None:
    """A line of output; it leaves with its chunk. A long one in parts: each is copied to become bytes."""
    for start in range(0, len(line), PART):
        sys.stdout.write(line[start : start + PART])
    sys.stdout.write("\n")


def _in_chunks(
    source: Iterator[PredictionInput | None],
    work: Callable[[Sequence[PredictionInput], Callable[[int], None]], None],
    label: str,
    rows: int | Path,
    options: RunOptions,
) -> None:
    """Give `work` the rows of `source` in chunks, or those that came before a None, and show progress, but not between
    answers on a terminal. What it writes has left this process before the next rows are read.

    rows: how many, or the file that holds them, which is only counted where progress is shown.
    """
    console = Console(quiet=options.quiet or sys.stdout.isatty(), json=options.json)
    total = rows if isinstance(rows, int) else _count(rows) if console.shows_progress else None
    most = AT_ONCE if str(rows) == "-" else WINDOW
    done = 0
    with console.slow_progress(label, total, "rows") as progress:
        for chunk in _chunks(source, most):
            work(chunk, lambda count, before=done: progress.update(before + count))
            sys.stdout.flush()
            done += len(chunk)
            progress.update(done)


def _chunks(source: Iterator[PredictionInput | None], most: int) -> Iterator[list[PredictionInput]]:
    """Consecutive rows: AT_ONCE, so that the first answers come soon, then `most` at a time; fewer where texts are
    long, or where a None says that they must not wait for more."""
    held: list[PredictionInput] = []
    characters, goal = 0, min(AT_ONCE, most)
    for one in source:
        if one is not None:
            held.append(one)
            characters += len(one.text) + len(one.pair or "")
        if held and (one is None or len(held) == goal or characters >= MOST_CHARACTERS):
            yield held
            held, characters, goal = [], 0, most
    if held:
        yield held


def _count(file: Path) -> int | None:
    """Rows of a file, where that costs next to nothing: the lines of a file of lines; else None."""
    if str(file) == "-" or not file.is_file() or _kind(file) == "csv":
        return None
    with open(file, "rb") as stream:
        return sum(1 for line in stream if line.strip() or _kind(file) is None)


def _given(
    texts: Sequence[str], pairs: Sequence[str], questions: Sequence[str], contexts: Sequence[str], file: Path | None
) -> list[PredictionInput]:
    """What the command line asks itself."""
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
        raise UserError("no input text", do='give texts, or --file FILE ("-" for standard input)')
    if questions:
        about = list(contexts) * (len(questions) if len(contexts) == 1 else 1)
        return [PredictionInput(question, context) for question, context in zip(questions, about, strict=True)]
    return [PredictionInput(text, pairs[i] if pairs else None) for i, text in enumerate(texts)]


# --- files --------------------------------------------------------------------------------------------------------


def read_rows(file: Path, task: Task) -> Iterator[PredictionInput | None]:
    """A text a line; of a table (JSON lines, CSV), and where a task's texts have names of their own such as question
    and context, a row each. None: what came so far must not wait for more."""
    named = len([role for role in task.text_roles if role in task.usual]) == 2
    if not named and _kind(file) is None:
        return (line if line is None else PredictionInput(line) for line in _lines(file))
    first, second = roles_of(task)
    paired = len(task.text_roles) == 2 and task.text_roles[1] not in task.optional_roles
    return _named_texts(file, first, second, paired)


def _read_texts(file: Path) -> Iterator[PredictionInput | None]:
    """What vectors are made of: a text a line, or the text of each row of a table."""
    if _kind(file) is None:
        return (line if line is None else PredictionInput(line) for line in _lines(file))
    return _named_texts(file, TEXT, (), False)


def _named_texts(
    file: Path, first: Sequence[str], second: Sequence[str], paired: bool
) -> Iterator[PredictionInput | None]:
    """Rows whose columns are usual names of the texts; an `id` is kept."""
    needs = " and ".join([first[0], *([second[0]] if paired else [])])
    for place in _table(file) if _kind(file) == "csv" else _objects(file, needs):
        if place is None:
            yield None
            continue
        where, row = place
        found = [_text_of(row, names, where, needed) for names, needed in ((first, True), (second, paired)) if names]
        assert found[0] is not None
        yield PredictionInput(found[0], found[1] if len(found) > 1 else None, {"id": row["id"]} if "id" in row else {})


def _kind(file: Path) -> str | None:
    """ "jsonl" or "csv" by the suffix; None for a text a line."""
    kind = SUFFIXES.get(file.suffix.lower())
    return kind if kind in ("jsonl", "csv") else None


def _table(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, cells by column) of each row of a CSV file, which is checked before the first is given."""
    try:
        if not file.stat().st_size:
            return
        rows = text_files.csv_rows(file, [])
    except OSError as error:
        raise UserError("cannot read the file", where=str(file), why=error.strerror) from error
    for number, row in enumerate(rows, 1):
        yield f"{file}: row {number}", row


def _objects(file: Path, needs: str) -> Iterator[tuple[str, dict[str, Any]] | None]:
    """(where it stands, object) of JSON lines. Blank lines are skipped."""
    number = 0
    for line in _lines(file):
        if line is None:
            yield None
            continue
        number += 1
        if not line or line.isspace():
            continue
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                "not JSON", where=where, why=printable(line, 60), do=f"write one object with {needs} on each line"
            ) from error
        if not isinstance(row, dict):
            raise UserError("not a JSON object", where=where, why=printable(line, 60))
        yield where, row


def _text_of(row: Mapping[str, Any], names: Sequence[str], where: str, needed: bool) -> str | None:
    """The text under the first of these names; None where it may be missing and is."""
    key = next((name for name in names if name in row), None)
    if key is None:
        if not needed:
            return None
        raise UserError(f"the row has no {names[0]}", where=where, do=did_you_mean(names[0], row))
    if not isinstance(row[key], str) or not row[key].strip():
        raise UserError(f"the {names[0]} is empty or not text", where=where)
    return row[key]


def _lines(file: Path) -> Iterator[str | None]:
    """Lines of a UTF-8 file or of standard input, without their ends; empty lines are texts too. None: what came from
    standard input so far must not wait for more."""
    with ExitStack() as stack:
        if str(file) == "-":
            found = lines_as_they_come(sys.stdin.buffer, AT_ONCE)
        else:
            try:
                stream = stack.enter_context(open(file, "rb"))
            except OSError as error:
                raise UserError("cannot read the file", where=str(file), why=error.strerror) from error
            found = iter(lambda: stream.readline(text_files.LINE_LIMIT + 1), b"")
        number = 0
        for line in found:
            if line is None:
                yield None
                continue
            number += 1
            text = _text(line, f"{file}:{number}")
            del line  # a line may have 64 MB: it is not kept beside its text
            yield text


def _text(line: bytes, where: str) -> str:
    """A line as text, without its end."""
    text_files.require_short_line(line, where, "text")
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        why = f"byte {error.start} of the line"
        raise UserError("not UTF-8", where=where, why=why, do="save the file as UTF-8") from error

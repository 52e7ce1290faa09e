"""Retrieval sets in the layout of BEIR (Thakur et al., arXiv 2104.08663): queries, documents, and which answer which.

corpus.jsonl and queries.jsonl have `_id` and `text` (documents also a `title`, which comes first), and each split is a
file qrels/<split>.tsv with a header and the columns query-id, corpus-id and score, a whole number: how relevant.

Beside them runs/<split>.trec may hold the candidates that a reranker sorts, as trec_eval reads what a search found: six
columns, of which the first is the query, the third the document and the fifth the score of the search.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from compress.data.reading import text_files
from compress.data.reading.files import look
from compress.data.reading.frame import Column, Frame
from compress.data.tables.candidates import drop_queries
from compress.data.tables.table import first_rows, format_count
from compress.errors import UserError, did_you_mean, printable, suggest

CORPUS, QUERIES, JUDGED = "corpus.jsonl", "queries.jsonl", "qrels"
RUNS = "runs"
QUERY, RELEVANT, CANDIDATES = "query", "relevant", "candidates"
"""Columns of a split: the text of a query; its judged documents: row, grade, row, grade …; and where there is a file of
candidates, their rows, best first."""
HEADER = ("query-id", "corpus-id", "score")


def is_beir(folder: Path) -> bool:
    """Whether a folder has this layout."""
    return (folder / CORPUS).is_file() and (folder / QUERIES).is_file()


def read_beir(
    folder: Path, wanted: Mapping[str, str], notes: list[str], bad_rows: str = "refuse"
) -> tuple[dict[str, Frame], pa.ChunkedArray]:
    """(split → its queries, the documents of all splits). wanted: our split → the name of its file.  bad_rows: "drop"
    leaves out queries without a relevant document, and notes how many.

    Raises UserError for ids that come twice, documents and queries without text, and judgements of documents and
    queries that are not there, or that leave a query without a relevant document.
    """
    documents, places = _read_texts(folder / CORPUS, "document")
    queries, numbers = _read_texts(folder / QUERIES, "query")
    frames = {}
    for split, stem in wanted.items():
        judged = _read_judged(folder / JUDGED / f"{stem}.tsv", numbers, places, notes, bad_rows)
        rows = sorted(judged)
        columns: dict[str, Column] = {
            QUERY: pa.chunked_array([pa.array([queries[row] for row in rows], pa.string())]),
            RELEVANT: [judged[row] for row in rows],
        }
        run = folder / RUNS / f"{stem}.trec"
        if run.is_file():
            found = _read_run(run, numbers, places)
            without = [name for name, row in numbers.items() if row in judged and row not in found]
            if without:
                what = f"query '{printable(without[0], 60)}' has no candidates"
                raise UserError(what, where=str(run), why=f"{len(without):,} of {len(rows):,} queries have none")
            columns[CANDIDATES] = [found[row] for row in rows]
        frames[split] = Frame(columns, len(rows))
    return frames, pa.chunked_array([pa.array(documents, pa.string())])


def list_judged(folder: Path) -> list[str]:
    """The splits that have judgements. Raises UserError where none has."""
    found = sorted(path.stem for path in (folder / JUDGED).glob("*.tsv"))
    if not found:
        raise UserError(
            "no judgements", where=str(folder / JUDGED),
            why=f"{CORPUS} and {QUERIES} are there, and no {JUDGED}/*.tsv says which documents answer a query",
            do=f"add {JUDGED}/test.tsv with the columns {', '.join(HEADER)}",
        )  # fmt: skip
    return found


def _read_texts(path: Path, what: str) -> tuple[list[str], dict[str, int]]:
    """(texts, id → row) of a file. what: it holds, document or query."""
    look(path)
    frame = text_files.read_jsonl(path)
    for name in ("_id", "text"):
        if name not in frame.columns:
            raise UserError(f"column '{name}' not found", where=str(path), do=did_you_mean(name, frame.columns))
    ids, texts = (_strings(frame, name) for name in ("_id", "text"))
    titles = _strings(frame, "title") if "title" in frame.columns and what == "document" else [""] * len(texts)
    whole = [f"{title} {text}".strip() for title, text in zip(titles, texts, strict=True)]
    empty = [row for row, text in enumerate(whole, 1) if not text]
    if empty:
        shown = f"{format_count(len(empty))} without text ({first_rows(empty)})"
        raise UserError(shown, where=str(path), do="fill them in, or remove them")
    places: dict[str, int] = {}
    for row, name in enumerate(ids):
        if not name:
            raise UserError("no _id", where=f"{path}: row {row + 1}", do="give every row an id of its own")
        if name in places:
            why = f"rows {places[name] + 1} and {row + 1}"
            shown = printable(name, 60)
            raise UserError(f"id '{shown}' comes twice", where=str(path), why=why, do="remove one of them")
        places[name] = row
    return whole, places


def _strings(frame: Frame, name: str) -> list[str]:
    column = frame.columns[name]
    values = column if isinstance(column, list) else column.to_pylist()
    return ["" if value is None else str(value) for value in values]


def _read_judged(
    path: Path, queries: Mapping[str, int], documents: Mapping[str, int], notes: list[str], bad_rows: str
) -> dict[int, list[int]]:
    """Row of a query → row and grade of each of its documents, end to end."""
    look(path)
    found: dict[int, dict[int, int]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        header = next(lines, [])
        if len(header) != len(HEADER) or header[2].strip().lstrip("-").isdigit():
            why = f"found {printable(', '.join(header), 80) or 'nothing'}"
            raise UserError("no header", where=f"{path}:1", why=why, do=f"begin with {', '.join(HEADER)}")
        for number, cells in enumerate(lines, 2):
            if not cells:
                continue
            query, document, grade = _judgement(cells, f"{path}:{number}")
            row, place = queries.get(query), documents.get(document)
            if row is None or place is None:
                raise _make_missing_error(query, document, queries, documents, f"{path}:{number}")
            if found.setdefault(row, {}).setdefault(place, grade) != grade:
                what = f"document '{printable(document, 60)}' has two grades for query '{printable(query, 60)}'"
                raise UserError(what, where=f"{path}:{number}", do="remove one of them")
    kept = _require_relevant(found, list(queries), str(path), notes, bad_rows)
    return {row: [x for pair in graded.items() for x in pair] for row, graded in kept.items()}


def _make_missing_error(
    query: str, document: str, queries: Mapping[str, int], documents: Mapping[str, int], where: str
) -> UserError:
    """Of a line that names a query or a document that is not there."""
    what, name, known, file_name = ("query", query, queries, QUERIES) if query not in queries else (
        "document", document, documents, CORPUS
    )  # fmt: skip
    do = suggest(name, known) or f"add it to {file_name}, or remove the line"
    return UserError(f"{what} '{printable(name, 60)}' is not in {file_name}", where=where, do=do)


def _read_run(path: Path, queries: Mapping[str, int], documents: Mapping[str, int]) -> dict[int, list[int]]:
    """Row of a query → rows of its candidates, best first: by their score, as trec_eval sorts them."""
    look(path)
    found: dict[int, dict[int, float]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            cells = line.split()
            if not cells:
                continue
            where = f"{path}:{number}"
            try:
                query, _, document, _, score, _ = cells
                value = float(score)
            except ValueError:
                raise UserError(
                    "not a line of a run", where=where, why=f"found '{printable(line.rstrip(), 80)}'",
                    do="give six columns: query, Q0, document, rank, score, name of the search",
                ) from None  # fmt: skip
            row, place = queries.get(query), documents.get(document)
            if row is None or place is None:
                raise _make_missing_error(query, document, queries, documents, where)
            if place in found.setdefault(row, {}):
                what = f"document '{printable(document, 60)}' comes twice for query '{printable(query, 60)}'"
                raise UserError(what, where=where, do="remove one of the lines")
            found[row][place] = value
    return {row: sorted(scores, key=lambda place: -scores[place]) for row, scores in found.items()}


def _judgement(cells: Sequence[str], where: str) -> tuple[str, str, int]:
    try:
        query, document, grade = cells
        return query, document, int(grade)
    except ValueError:
        line = printable("\t".join(cells), 80)
        raise UserError(
            "not a judgement", where=where, why=f"found '{line}'", do="give two ids and a whole number, split by tabs"
        ) from None


def _require_relevant(
    found: Mapping[int, Mapping[int, int]], names: Sequence[str], where: str, notes: list[str], bad_rows: str
) -> dict[int, Mapping[int, int]]:
    """The queries that have a document above grade 0. Raises UserError for others, unless they are to be dropped, and
    where none is left."""
    if not found:
        raise UserError("the file has no judgements", where=where)
    kept = {row: graded for row, graded in found.items() if max(graded.values()) > 0}
    without = [names[row] for row in found if row not in kept]
    if without:
        shown = ", ".join(printable(name, 40) for name in without[:3]) + (" …" if len(without) > 3 else "")
        what = "1 query has" if len(without) == 1 else f"{len(without):,} queries have"
        told = f"{what} no relevant document ({shown})"
        drop_queries(told, where, bad_rows if kept else "refuse", notes, "grade")
    return kept

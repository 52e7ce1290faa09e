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
from compress.data.tables.table import drop_rows, first_rows
from compress.errors import UserError, did_you_mean, format_count, printable, suggest

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
    """(split → its queries, the documents of all splits). wanted: our split → the name of its file.

    bad_rows: "drop" leaves out documents and queries without text, lines about documents and queries that are not
    there, and queries without a relevant document or without candidates, and notes how many.

    Raises UserError for these unless they are to be dropped, for ids that come twice, and where no row is left.
    """
    documents, places = _read_texts(folder / CORPUS, "document", notes, bad_rows)
    queries, numbers = _read_texts(folder / QUERIES, "query", notes, bad_rows)
    frames = {}
    for split, stem in wanted.items():
        judged = _read_judged(folder / JUDGED / f"{stem}.tsv", numbers, places, notes, bad_rows)
        run = folder / RUNS / f"{stem}.trec"
        found = _read_run(run, numbers, places, notes, bad_rows) if run.is_file() else None
        if found is not None:
            judged = _require_candidates(judged, found, list(numbers), str(run), notes, bad_rows)
        rows = sorted(judged)
        columns: dict[str, Column] = {
            QUERY: pa.chunked_array([pa.array([queries[row] for row in rows], pa.string())]),
            RELEVANT: [judged[row] for row in rows],
        }
        if found is not None:
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


def _read_texts(path: Path, what: str, notes: list[str], bad_rows: str) -> tuple[list[str], dict[str, int]]:
    """(texts, id → its place among them) of a file. what: it holds, document or query."""
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
        drop_rows(shown, str(path), bad_rows if len(empty) < len(whole) else "refuse", notes, "fill them in")
    rows: dict[str, int] = {}
    for row, name in enumerate(ids):
        if not name:
            raise UserError("no _id", where=f"{path}: row {row + 1}", do="give every row an id of its own")
        if name in rows:
            why = f"rows {rows[name] + 1} and {row + 1}"
            shown = printable(name, 60)
            raise UserError(f"id '{shown}' comes twice", where=str(path), why=why, do="remove one of them")
        rows[name] = row
    kept = [name for name in rows if whole[rows[name]]]
    return [whole[rows[name]] for name in kept], {name: place for place, name in enumerate(kept)}


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
    unknown = _UnknownIds(queries, documents, str(path), bad_rows)
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
                unknown.add(query, document, number)
                continue
            if found.setdefault(row, {}).setdefault(place, grade) != grade:
                what = f"document '{printable(document, 60)}' has two grades for query '{printable(query, 60)}'"
                raise UserError(what, where=f"{path}:{number}", do="remove one of them")
    unknown.note(notes, bool(found))
    if not found:
        raise UserError("the file has no judgements", where=str(path))
    kept = _require_relevant(found, list(queries), str(path), notes, bad_rows)
    return {row: [x for pair in graded.items() for x in pair] for row, graded in kept.items()}


class _UnknownIds:
    """The lines of a file that name a query or a document that is not there, or that was dropped. where: the file."""

    def __init__(self, queries: Mapping[str, int], documents: Mapping[str, int], where: str, bad_rows: str) -> None:
        self.queries, self.documents, self.where, self.bad_rows = queries, documents, where, bad_rows
        self.lines: list[int] = []

    def add(self, query: str, document: str, line: int) -> None:
        """Raises UserError unless such lines are to be dropped."""
        if self.bad_rows == "refuse":
            what, name, known, file_name = ("query", query, self.queries, QUERIES) if query not in self.queries else (
                "document", document, self.documents, CORPUS
            )  # fmt: skip
            told, where = f"{what} '{printable(name, 60)}' is not in {file_name}", f"{self.where}:{line}"
            if (do := suggest(name, known)) is not None:
                raise UserError(told, where=where, do=do)
            drop_rows(told, where, self.bad_rows, [], f"add it to {file_name}", which="such lines")
        self.lines.append(line)

    def note(self, notes: list[str], left: bool) -> None:
        """Note how many lines were dropped. Raises UserError where none is left."""
        if self.lines:
            what = f"{format_count(len(self.lines), 'line')} about a missing query or document"
            shown = f"{what} ({first_rows(self.lines).replace('row', 'line')})"
            drop_rows(shown, self.where, "drop" if left else "refuse", notes, "add these to the files")


def _read_run(
    path: Path, queries: Mapping[str, int], documents: Mapping[str, int], notes: list[str], bad_rows: str
) -> dict[int, list[int]]:
    """Row of a query → rows of its candidates, best first: by their score, as trec_eval sorts them."""
    look(path)
    found: dict[int, dict[int, float]] = {}
    unknown = _UnknownIds(queries, documents, str(path), bad_rows)
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
                unknown.add(query, document, number)
                continue
            if place in found.setdefault(row, {}):
                what = f"document '{printable(document, 60)}' comes twice for query '{printable(query, 60)}'"
                raise UserError(what, where=where, do="remove one of the lines")
            found[row][place] = value
    unknown.note(notes, bool(found))
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
    kept = {row: graded for row, graded in found.items() if max(graded.values()) > 0}
    without = [names[row] for row in found if row not in kept]
    _drop_queries(
        without, "no relevant document", "give one a grade above 0", where, notes, bad_rows if kept else "refuse"
    )
    return kept


def _require_candidates(
    judged: Mapping[int, list[int]], found: Mapping[int, Sequence[int]], names: Sequence[str], where: str,
    notes: list[str], bad_rows: str,
) -> dict[int, list[int]]:  # fmt: skip
    """As `_require_relevant`, of the judged queries that have candidates."""
    kept = {row: grades for row, grades in judged.items() if row in found}
    without = [names[row] for row in judged if row not in kept]
    _drop_queries(without, "no candidates", "add some", where, notes, bad_rows if kept else "refuse")
    return kept


def _drop_queries(
    names: Sequence[str], lacking: str, fix: str, where: str, notes: list[str], bad_rows: str
) -> None:  # fmt: skip
    """`drop_rows` of queries, where there are such."""
    if names:
        shown = ", ".join(printable(name, 40) for name in names[:3]) + (" …" if len(names) > 3 else "")
        what = "1 query has" if len(names) == 1 else f"{len(names):,} queries have"
        drop_rows(f"{what} {lacking} ({shown})", where, bad_rows, notes, fix, which="these queries")

"""Retrieval sets in BEIR's layout: queries with their graded documents, and each fault with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compress.data.reading.beir import CANDIDATES, QUERY, RELEVANT, is_beir, list_judged, read_beir
from compress.data.reading.places import open_source
from compress.errors import UserError

CORPUS = [{"_id": "d1", "title": "On", "text": "cats"}, {"_id": "d2", "text": "dogs"}, {"_id": "d3", "title": "Birds"}]
QUERIES = [{"_id": "q1", "text": "which cats"}, {"_id": "q2", "text": "which dogs"}]
HEAD = "query-id\tcorpus-id\tscore\n"


def write(folder: Path, judged: str, corpus: list[dict[str, str]] = CORPUS, queries: list[dict[str, str]] = QUERIES):
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels").mkdir()
    (folder / "qrels" / "dev.tsv").write_text(judged)
    return folder


def error_of(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        read_beir(folder, {"validation": "dev"}, [])
    return str(error.value).replace(f"{folder}/", "")


def test_queries_and_documents(tmp_path: Path) -> None:
    folder = write(tmp_path, f"{HEAD}q2\td2\t2\nq2\td1\t0\n\nq1\td1\t1\nq1\td1\t1\n")
    frames, documents = read_beir(folder, {"validation": "dev"}, [])
    frame = frames["validation"]
    assert documents.to_pylist() == ["On cats", "dogs", "Birds"], "the title comes first"
    assert frame.rows == 2
    texts = frame.columns[QUERY]
    assert not isinstance(texts, list)
    assert texts.to_pylist() == ["which cats", "which dogs"], "in the order of queries.jsonl"
    assert frame.columns[RELEVANT] == [[0, 1], [1, 2, 0, 0]], "row, grade, row, grade; a line that comes twice is one"


@pytest.mark.parametrize(
    ("judged", "line"),
    [
        ("q1\td1\t1\n", "qrels/dev.tsv:1: no header: found q1, d1, 1; begin with query-id, corpus-id, score"),
        (HEAD, "qrels/dev.tsv: the file has no judgements"),
        (
            HEAD + "q1\td1\n",
            "qrels/dev.tsv:2: not a judgement: found 'q1\\td1'; give two ids and a whole number, split",
        ),
        (HEAD + "q1\td1\t0.5\n", "qrels/dev.tsv:2: not a judgement: found"),
        (
            HEAD + "q1\td1\t1\nq3\td1\t1\n",
            "qrels/dev.tsv:3: query 'q3' is not in queries.jsonl; add it to queries.jsonl",
        ),
        (HEAD + "q1\td11\t1\n", "qrels/dev.tsv:2: document 'd11' is not in corpus.jsonl; did you mean 'd1'?"),
        (HEAD + "q1\tzzz\t1\n", "qrels/dev.tsv:2: document 'zzz' is not in corpus.jsonl; add it to corpus.jsonl, or"),
        (HEAD + "q1\td1\t1\nq1\td1\t2\n", "qrels/dev.tsv:3: document 'd1' has two grades for query 'q1'; remove one"),
        (
            HEAD + "q1\td1\t0\nq2\td2\t1\n",
            "qrels/dev.tsv: 1 query has no relevant document (q1); give one a grade above 0",
        ),
        (HEAD + "q1\td1\t0\nq2\td2\t-1\n", "qrels/dev.tsv: 2 queries have no relevant document (q1, q2); give"),
    ],
)
def test_wrong_judgements(judged: str, line: str, tmp_path: Path) -> None:
    assert error_of(write(tmp_path, judged)).startswith(line)


def test_queries_without_a_relevant_document_can_be_dropped(tmp_path: Path) -> None:
    folder = write(tmp_path, f"{HEAD}q1\td1\t0\nq2\td2\t1\n")
    notes: list[str] = []
    assert open_source(str(folder), notes, bad_rows="drop").frames["validation"].columns[RELEVANT] == [[1, 1]]
    assert len(notes) == 1
    assert notes[0].endswith("qrels/dev.tsv: 1 query has no relevant document (q1), dropped")
    (folder / "qrels" / "dev.tsv").write_text(f"{HEAD}q1\td1\t0\n")
    with pytest.raises(UserError, match="no relevant document"):
        open_source(str(folder), notes, bad_rows="drop")


def test_rows_without_text_and_lines_about_missing_rows_can_be_dropped(tmp_path: Path) -> None:
    queries = [{"_id": "q0", "text": " "}, *QUERIES, {"_id": "q3", "text": "which birds"}, {"_id": "q4", "text": "no"}]
    corpus = [{"_id": "d0", "text": ""}, *CORPUS]
    judged = "q0\td1\t1\nq1\td0\t1\nq1\td1\t1\nq2\td9\t1\nq3\td2\t1\nq4\td0\t1\nq9\td1\t1\nq4\td3\t1\nq2\td3\t0\n"
    folder = write(tmp_path, HEAD + judged, corpus, queries)
    (folder / "runs").mkdir()
    (folder / "runs" / "dev.trec").write_text("q1 Q0 d0 1 7 x\nq1 Q0 d2 2 6 x\nq3 Q0 d1 1 5 x\nq9 Q0 d1 1 5 x\n")
    notes: list[str] = []
    frames, documents = read_beir(folder, {"validation": "dev"}, notes, "drop")
    assert documents.to_pylist() == ["On cats", "dogs", "Birds"]
    columns = frames["validation"].columns
    texts = columns[QUERY]
    assert not isinstance(texts, list)
    assert texts.to_pylist() == ["which cats", "which birds"]
    assert columns[RELEVANT] == [[0, 1], [1, 1]], "places among the documents that are left"
    assert columns[CANDIDATES] == [[1], [0]]
    assert [note.replace(f"{folder}/", "") for note in notes] == [
        "corpus.jsonl: 1 row without text (row 1), dropped",
        "queries.jsonl: 1 row without text (row 1), dropped",
        "qrels/dev.tsv: 5 lines about a missing query or document (lines 2, 3, 5 …), dropped",
        "qrels/dev.tsv: 1 query has no relevant document (q2), dropped",
        "runs/dev.trec: 2 lines about a missing query or document (lines 1, 4), dropped",
        "runs/dev.trec: 1 query has no candidates (q4), dropped",
    ]


@pytest.mark.parametrize(
    ("judged", "corpus", "line"),
    [
        ("q9\td1\t1\n", CORPUS, "qrels/dev.tsv: 1 line about a missing query or document (line 2); add"),
        ("q1\td1\t1\n", [{"_id": "d1", "text": ""}], "corpus.jsonl: 1 row without text (row 1); fill them in, or"),
    ],
)
def test_something_must_be_left(judged: str, corpus: list[dict[str, str]], line: str, tmp_path: Path) -> None:
    folder = write(tmp_path, HEAD + judged, corpus)
    with pytest.raises(UserError) as error:
        read_beir(folder, {"validation": "dev"}, [], "drop")
    assert str(error.value).replace(f"{folder}/", "").startswith(line)


@pytest.mark.parametrize(
    ("corpus", "line"),
    [
        ([{"id": "d1", "text": "a"}], "corpus.jsonl: column '_id' not found; did you mean 'id'?"),
        ([*CORPUS, CORPUS[0]], "corpus.jsonl: id 'd1' comes twice: rows 1 and 4; remove one of them"),
        ([*CORPUS, {"_id": "", "text": "a"}], "corpus.jsonl: row 4: no _id; give every row an id of its own"),
        (
            [*CORPUS, {"_id": "d4", "text": " "}],
            "corpus.jsonl: 1 row without text (row 4); fill them in, or drop them with --bad-rows drop",
        ),
    ],
)
def test_wrong_documents(corpus: list[dict[str, str]], line: str, tmp_path: Path) -> None:
    assert error_of(write(tmp_path, f"{HEAD}q1\td1\t1\n", corpus)).startswith(line)


def test_a_title_is_no_query(tmp_path: Path) -> None:
    queries = [{"_id": "q1", "title": "never read", "text": "which"}]
    frames, _ = read_beir(write(tmp_path, f"{HEAD}q1\td1\t1\n", queries=queries), {"test": "dev"}, [])
    texts = frames["test"].columns[QUERY]
    assert not isinstance(texts, list)
    assert texts.to_pylist() == ["which"]


def test_the_layout(tmp_path: Path) -> None:
    assert not is_beir(tmp_path)
    write(tmp_path, HEAD)
    assert is_beir(tmp_path)
    assert list_judged(tmp_path) == ["dev"]
    (tmp_path / "qrels" / "dev.tsv").unlink()
    with pytest.raises(UserError, match=r"no judgements: corpus\.jsonl and queries\.jsonl are there"):
        list_judged(tmp_path)

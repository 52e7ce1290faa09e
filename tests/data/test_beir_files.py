"""Retrieval sets in BEIR's layout: queries with their graded documents, and each fault with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compress.data.reading.beir import QUERY, RELEVANT, is_beir, list_judged, read_beir
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


@pytest.mark.parametrize(
    ("corpus", "line"),
    [
        ([{"id": "d1", "text": "a"}], "corpus.jsonl: column '_id' not found; did you mean 'id'?"),
        ([*CORPUS, CORPUS[0]], "corpus.jsonl: id 'd1' comes twice: rows 1 and 4; remove one of them"),
        ([*CORPUS, {"_id": "", "text": "a"}], "corpus.jsonl: row 4: no _id; give every row an id of its own"),
        ([*CORPUS, {"_id": "d4", "text": " "}], "corpus.jsonl: 1 row without text (row 4); fill them in, or remove"),
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

"""Data of rerankers: graded pairs, queries with a positive document, question answering sets, and candidates in the
layout of BEIR."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.data.batches.ragged import Ragged
from compress.data.batches.task_batches import TaskBatches
from compress.data.reading.sources import open_table
from compress.data.tables.table import Rows, Table
from compress.data.tasks import task_of
from compress.data.text.bm25 import BM25
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError

HEAD = ("classification", "ranking")
DRAWN = np.ones((1, 2))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def opened(source: Path, **asked: Any) -> Table:
    return open_table(str(source), expect_head=HEAD, measured="test", **asked)


def cells(rows: Rows) -> list[list[tuple[str, float, bool]]]:
    """(document, grade, whether it is ranked) of each query."""
    assert isinstance(rows.labels, Ragged)
    assert rows.documents is not None
    texts = rows.documents.to_pylist()
    return [[(texts[int(d)], float(g), bool(r)) for d, g, r in rows.labels.row(i)] for i in range(len(rows.labels))]


PAIRS = [
    {"query": "who", "document": "the film", "label": 1},
    {"query": "what", "document": "a plot", "label": 0},
    {"query": "who", "document": "a plot", "label": 0},
    {"query": "what", "document": "the film", "label": 3},
    {"query": "who", "document": "the actor", "label": 0},
    {"query": "what", "document": "a plot", "label": 1},  # again: the higher grade counts
]


def test_pairs_are_grouped_by_their_query(tmp_path, toy_tokenizer_files):
    table = opened(write(tmp_path / "test.jsonl", PAIRS).parent)
    test = table.split("test")
    assert (table.task, list(table.label_names), table.settings["metric"]) == ("reranking", ["LABEL_0"], "ndcg_at_10")
    assert test.texts == ["who", "what"]
    assert test.numbers.tolist() == [1, 2]
    assert cells(test) == [
        [("the film", 1, True), ("a plot", 0, True), ("the actor", 0, True)],
        [("a plot", 1, True), ("the film", 3, True)],
    ]
    task = task_of("reranking", {"top_grade": 3.0})
    examples = task.encode(Tokenizer(toy_tokenizer_files), test, max_length=16)
    assert examples.labels[:, 0].tolist() == pytest.approx([1 / 3, 0, 0, 1 / 3, 1])
    assert examples.numbers.tolist() == [1, 1, 1, 2, 2]
    assert examples.queries is not None
    queries = examples.take([4, 0]).queries
    assert queries is not None
    assert queries.tolist() == [1, 0]


def test_rankings_have_rank_metrics_over_queries(tmp_path, toy_tokenizer_files):
    test = opened(write(tmp_path / "test.jsonl", PAIRS).parent).split("test")
    task = task_of("reranking")
    examples = task.encode(Tokenizer(toy_tokenizer_files), test, max_length=16)
    logits = np.array([[0.1], [0.9], [0.5], [0.3], [0.7]], dtype=np.float32)
    scored = task.score(logits, ["LABEL_0"], examples, test)
    assert scored.rows == 2
    values = {name: figure(DRAWN)[0] for name, figure in scored.metrics.items()}
    assert values["mrr_at_10"] == pytest.approx((1 / 3 + 1) / 2)
    assert values["ndcg_at_10"] == pytest.approx((1 / 2 + 1) / 2)
    random = (1 / 3) * (1 + 1 / np.log2(3) + 1 / 2) / 1, 2 * (1 + 1 / np.log2(3)) / (3 + 1 / np.log2(3))
    assert scored.chance["ndcg_at_10"] == pytest.approx(np.mean(random))
    # A model that finds all documents equally relevant gains nothing by the order of the data.
    flat = task.score(np.zeros((5, 1), np.float32), ["LABEL_0"], examples, test)
    assert flat.metrics["mrr_at_10"](DRAWN)[0] == pytest.approx((1 / 3 + 1) / 2)
    same = task.compare(logits, logits * 2, ["LABEL_0"], examples, test)
    assert [same.figures[name](DRAWN)[0] for name in ("agreement", "rank_correlation")] == pytest.approx([1, 1])
    found = task.answer_by_baseline(test, test, ["LABEL_0"])
    assert found is not None
    assert found[0] == "bm25"


def test_each_query_with_one_document_is_a_scored_pair(tmp_path, toy_tokenizer_files):
    rows = [{"sentence1": f"the film {i}", "sentence2": "a plot", "score": i / 8} for i in range(8)]
    table = opened(write(tmp_path / "test.jsonl", rows).parent)
    test = table.split("test")
    assert table.settings["metric"] == "spearman"
    task = task_of("reranking")
    examples = task.encode(Tokenizer(toy_tokenizer_files), test, max_length=16)
    assert len(examples) == task.count_examples(test) == 8
    logits = np.arange(8, dtype=np.float32)[:, None]
    assert task.score(logits, [], examples, test).metrics["spearman"](np.ones((1, 8)))[0] == pytest.approx(1)
    with pytest.raises(UserError, match="ndcg_at_10 has no figure on scored pairs"):
        opened(tmp_path, settings={"metric": "ndcg@10"})


def test_a_query_with_a_positive_document_is_ranked_among_those_of_bm25(tmp_path, toy_tokenizer_files):
    rows = [
        {"query": "the good film", "positive": "a good film", "negative": "a dull plot"},
        {"query": "the dull plot", "positive": "the actor", "negative": "bad"},
    ]
    test = opened(write(tmp_path / "test.jsonl", rows).parent).split("test")
    (first, second) = cells(test)
    assert first[0] == ("a good film", 1, True)
    assert second[0] == ("a dull plot", 0, True)
    assert {text for text, _, _ in second} == {"a good film", "the actor", "a dull plot", "bad"}  # all four: few exist
    assert [text for text, grade, _ in second if grade] == ["the actor"]
    task = task_of("reranking")
    examples = task.encode(Tokenizer(toy_tokenizer_files), test, max_length=16)
    assert len(examples) == task.count_examples(test) == 8


def test_fewer_queries_are_studied_than_rows_of_one_text(tmp_path):
    rows = [
        {"query": f"film {i}", "document": f"plot {j}", "label": int(j == 0)} for i in range(100) for j in range(16)
    ]
    test = opened(write(tmp_path / "test.jsonl", rows).parent).split("test")
    task = task_of("reranking")
    assert task.count_rows(test, 1600) == 100
    assert task.count_rows(test, 90) == 32, "no fewer than these"
    assert task.count_rows(test, 8) == 8


def test_a_question_answering_set_is_questions_and_contexts(tmp_path):
    rows = [{"question": f"who {i % 40}", "context": f"context {i}", "answers": ["context"]} for i in range(80)]
    info = {"task": "extractive-qa", "question_column": "question", "context_column": "context"}
    write(tmp_path / "test.jsonl", rows)
    (tmp_path / "info.json").write_text(json.dumps({**info, "answers_column": "answers"}))
    test = opened(tmp_path).split("test")
    assert len(test) == 40
    for number, found in enumerate(cells(test)):
        relevant = {text for text, grade, _ in found if grade}
        assert relevant == {f"context {number}", f"context {number + 40}"}
        assert 30 <= len(found) <= 32


def test_bm25_orders_documents_by_rare_words_and_short_texts():
    index = BM25(["the film the film", "the film was good", "good", "the plot"])
    assert next(index.best(["good"], 2)).tolist() == [2, 1]
    assert next(index.best(["nothing shared"], 3)).tolist() == [0, 1, 2]
    tf, length, mean = 1, 4, 11 / 4
    idf = np.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    assert index.scores("good")[1] == pytest.approx(idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / mean)))


def test_batches_keep_the_documents_of_a_query_together(tmp_path, toy_tokenizer_files):
    rows = [
        {"query": f"film {i}", "document": f"plot {j}", "label": int(j == 0)} for i in range(7) for j in range(i + 1)
    ]
    test = opened(write(tmp_path / "test.jsonl", rows).parent).split("test")
    examples = task_of("reranking").encode(Tokenizer(toy_tokenizer_files), test, max_length=16)
    source = TaskBatches(examples, 8, 30, 0, by_query=True)
    seen = []
    for step in range(source.steps(0)):
        for batch in source.step(0, step):
            queries = batch.extra["queries"].tolist()
            assert all(queries.count(query) == query + 1 for query in set(queries))
            seen += batch.row_ids.tolist()
    assert sorted(seen) == list(range(28))
    assert source.steps(0) == 4  # two queries a step: 8 rows of 28, and 4 a query on average


# --- BEIR ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    write(tmp_path / "corpus.jsonl", [{"_id": f"d{i}", "title": "", "text": f"document {i}"} for i in range(5)])
    write(tmp_path / "queries.jsonl", [{"_id": f"q{i}", "text": f"document {i}"} for i in range(3)])
    (tmp_path / "qrels").mkdir()
    judged = "query-id\tcorpus-id\tscore\nq0\td0\t2\nq0\td4\t1\nq1\td3\t1\n"
    (tmp_path / "qrels" / "test.tsv").write_text(judged, encoding="utf-8")
    return tmp_path


def run(folder: Path, *lines: str) -> None:
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / "test.trec").write_text("".join(f"{line} bm25\n" for line in lines), encoding="utf-8")


def test_candidates_of_a_run_are_ranked_and_what_it_missed_still_counts(beir, toy_tokenizer_files):
    run(beir, "q0 Q0 d1 1 7.5", "q0 Q0 d0 2 9", "q1 Q0 d3 1 1", "q2 Q0 d3 1 1")
    test = opened(beir).split("test")
    assert cells(test) == [
        [("document 0", 2, True), ("document 1", 0, True), ("document 4", 1, False)],
        [("document 3", 1, True)],
    ]
    task = task_of("reranking")
    examples = task.encode(Tokenizer(toy_tokenizer_files), test, max_length=16)
    assert len(examples) == 3
    scored = task.score(np.array([[2], [1], [0]], np.float32), [], examples, test)
    ideal = 2 + 1 / np.log2(3)
    assert scored.metrics["ndcg_at_10"](DRAWN)[0] == pytest.approx((2 / ideal + 1) / 2)


def test_without_a_run_bm25_finds_the_candidates(beir):
    test = opened(beir).split("test")
    assert [found[0][0] for found in cells(test)] == ["document 0", "document 1"]
    assert all(ranked for found in cells(test) for _, _, ranked in found)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["q0 Q0 d9 1 7"], r"test.trec:1: document 'd9' is not in corpus.jsonl"),
        (["q0 Q0 d1 1 7", "qq Q0 d1 1 7"], r"test.trec:2: query 'qq' is not in queries.jsonl"),
        (["q0 d1 1"], r"test.trec:1: not a line of a run"),
        (["q0 Q0 d1 1 high"], r"test.trec:1: not a line of a run"),
        (["q0 Q0 d1 1 7", "q0 Q0 d1 2 6"], r"test.trec:2: document 'd1' comes twice for query 'q0'"),
        (["q0 Q0 d1 1 7"], r"1 query has no candidates \(q1\); add some, or drop these queries with --bad-rows drop"),
    ],
)
def test_bad_runs(beir, lines, line):
    run(beir, *lines)
    with pytest.raises(UserError, match=line):
        opened(beir)


# --- bad input ----------------------------------------------------------------------------------------------------


def test_queries_without_a_relevant_document(tmp_path):
    rows = [*PAIRS, {"query": "none", "document": "a plot", "label": 0}]
    folder = write(tmp_path / "test.jsonl", rows).parent
    with pytest.raises(UserError, match=r"1 query without a relevant document \(row 7\)"):
        opened(folder)
    table = opened(folder, bad_rows="drop")
    assert table.split("test").texts == ["who", "what"]
    assert any("1 query without a relevant document (row 7), dropped" in note for note in table.notes)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([{"query": "a", "document": None, "label": 1}], "1 row without a text pair"),
        ([{"query": "a", "document": "b", "label": -1}], "relevance below 0"),
        ([{"query": "a", "document": "b", "label": "yes"}], "a score that is not a number"),
        ([{"text": "a"}], "a reranker needs queries with documents"),
        ([{"query": "a", "documents": ["b", "c"]}], "'documents' is a list, not a text; write a row for each query"),
        ([{"query": "a", "documents": ["b"], "labels": [1]}], "'documents' is a list, not a text; write a row for"),
        ([{"query": "a", "positive": ["b", "c"]}], "'positive' is a list, not a text; write a row for each query"),
    ],
)
def test_bad_rows(tmp_path, rows, line):
    with pytest.raises(UserError, match=line):
        opened(write(tmp_path / "test.jsonl", [*PAIRS, *rows] if "document" in rows[0] else rows).parent)


def test_labels_of_pairs_with_names_are_no_relevance(tmp_path):
    write(tmp_path / "test.jsonl", PAIRS)
    info = {"task": "pair-classification", "label_column": "label", "label_names": ["entailment", "other"]}
    (tmp_path / "info.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match="relevance has no label names"):
        opened(tmp_path)

"""Data of sentence embeddings: texts, scored pairs, queries with documents, and sets in the layout of BEIR."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.data.reading.sources import open_table
from compress.data.tables.table import Table
from compress.data.tasks import task_of
from compress.data.tasks.embedding import documents_of, form_of, relevant_of
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError

HEAD = ("embedding", "single_label")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def opened(source: Path, **asked: Any) -> Table:
    return open_table(str(source), expect_head=HEAD, measured="test", **asked)


def test_plain_text_has_no_labels_and_is_split_by_content(tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"text {i}\n\n" for i in range(60)), encoding="utf-8")
    table = open_table(str(tmp_path / "texts.txt"), expect_head=HEAD)
    assert (table.task, table.label_names, table.columns) == ("embedding", [], {"text": "text"})
    assert {name: form_of(rows) for name, rows in table.splits.items()} == dict.fromkeys(
        ("train", "validation", "test"), "texts"
    )
    assert sum(map(len, table.splits.values())) == 60
    assert table.settings["metric"] == "cosine"
    with pytest.raises(UserError, match=r"cannot read '\.txt' files as a table"):
        open_table(str(tmp_path / "texts.txt"))


def test_texts_with_classes_are_texts(tmp_path):
    rows = [{"text": f"text {i}", "label": "yes" if i % 2 else "no"} for i in range(40)]
    table = open_table(str(write(tmp_path / "rows.jsonl", rows)), expect_head=HEAD)
    assert (table.task, table.columns) == ("embedding", {"text": "text"})
    scored = [{"text": f"text {i}", "score": i / 7} for i in range(40)]
    table = open_table(str(write(tmp_path / "scored.jsonl", scored)), expect_head=HEAD)
    assert "column 'score' is not used: a score compares two texts" in table.notes


def test_pairs_with_a_score(tmp_path, toy_tokenizer_files):
    rows = [{"sentence1": f"the film {i}", "sentence2": "a plot", "score": i / 3} for i in range(20)]
    rows[3]["score"] = None
    table = opened(write(tmp_path / "test.jsonl", rows).parent, bad_rows="drop")
    test = table.split("test")
    assert (form_of(test), len(test), table.settings["metric"]) == ("scored pairs", 19, "spearman")
    task, tokenizer = task_of("embedding", {"prompt": "Very ", "lowercase": True}), Tokenizer(toy_tokenizer_files)
    examples = task.encode(tokenizer, test, max_length=16)
    assert len(examples) == task.count_examples(test) == 38  # each text alone, first those of all rows
    assert tokenizer.decode(examples.ids[: examples.offsets[1]].tolist()).startswith("very the film")
    vectors = np.random.default_rng(0).normal(size=(38, 5)).astype(np.float32)
    scored = task.score(vectors, [], examples, test)
    assert list(scored.metrics) == ["spearman"]
    same = np.tile(vectors[:1], (38, 1))
    assert "spearman" in task.score(same, [], examples, test).undefined


def test_queries_with_a_document_and_a_negative(tmp_path, toy_tokenizer_files):
    rows = [
        {"query": "who", "positive": "the film", "negative": "a plot"},
        {"query": "what", "positive": "the actor", "negative": "the film"},
        {"query": "who", "positive": "the actor", "negative": "bad"},
    ]
    test = opened(write(tmp_path / "test.jsonl", rows).parent).split("test")
    assert form_of(test) == "retrieval"
    assert documents_of(test) == ["the film", "the actor", "a plot", "bad"]
    assert relevant_of(test) == [{0: 1.0, 1: 1.0}, {1: 1.0}, {0: 1.0, 1: 1.0}]  # one query, two documents
    task = task_of("embedding")
    examples = task.encode(Tokenizer(toy_tokenizer_files), test, max_length=8)
    assert len(examples) == task.count_examples(test) == 3 + 4
    vectors = np.eye(7, 4, dtype=np.float32)
    vectors[3:] = np.eye(4)
    vectors[:3] = np.eye(4)[[0, 0, 3]]
    values = {name: figure(np.ones((1, 3)))[0] for name, figure in task_of("embedding").score(
        vectors, [], examples, test
    ).metrics.items()}  # fmt: skip
    assert values["recall_at_1"] == pytest.approx((0.5 + 0 + 0) / 3)
    assert values["mrr_at_10"] == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)


def test_a_question_is_a_query_and_its_context_a_document(tmp_path):
    rows = [{"question": f"who {i}", "context": f"context {i % 3}", "answers": ["context"]} for i in range(12)]
    info = {"task": "extractive-qa", "question_column": "question", "context_column": "context"}
    write(tmp_path / "test.jsonl", rows)
    (tmp_path / "info.json").write_text(json.dumps({**info, "answers_column": "answers"}))
    table = opened(tmp_path)
    assert (form_of(table.split("test")), table.settings["metric"]) == ("retrieval", "ndcg_at_10")
    assert len(documents_of(table.split("test"))) == 3


# --- BEIR ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    documents = [{"_id": f"d{i}", "title": f"title {i}", "text": f"document {i}"} for i in range(5)]
    write(tmp_path / "corpus.jsonl", documents)
    write(tmp_path / "queries.jsonl", [{"_id": f"q{i}", "text": f"query {i}"} for i in range(4)])
    judge(tmp_path, "q2\td1\t1", "q0\td0\t2", "q0\td4\t0", "q2\td3\t1")
    return tmp_path


def judge(folder: Path, *lines: str, split: str = "test") -> None:
    (folder / "qrels").mkdir(exist_ok=True)
    text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
    (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")


def test_beir(beir):
    table = open_table(str(beir), measured="test")  # the layout says what it is
    test = table.split("test")
    assert (table.task, table.label_names, table.settings["metric"]) == ("embedding", [], "ndcg_at_10")
    assert test.texts == ["query 0", "query 2"]  # those that are judged
    assert documents_of(test) == [f"title {i} document {i}" for i in range(5)]
    assert relevant_of(test) == [{0: 2.0, 4: 0.0}, {1: 1.0, 3: 1.0}]
    few = test.take(np.array([1]))
    assert (few.texts, relevant_of(few), len(documents_of(few))) == (["query 2"], [{1: 1.0, 3: 1.0}], 5)
    before = table.fingerprint
    write(beir / "corpus.jsonl", [{"_id": f"d{i}", "text": f"other {i}"} for i in range(5)])
    assert open_table(str(beir), measured="test").fingerprint != before


def test_splits_of_beir(beir):
    judge(beir, "q1\td2\t1", split="dev")
    judge(beir, *(f"q{i}\td{i}\t1" for i in range(4)), split="train")
    table = open_table(str(beir))
    assert {name: len(rows) for name, rows in table.splits.items()} == {"train": 4, "validation": 1, "test": 2}


def spoil(folder: Path, name: str, change: Any) -> None:
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    change(rows)
    write(folder / name, rows)


@pytest.mark.parametrize(
    ("spoiled", "line"),
    [
        (
            lambda f: judge(f, "q0\td0\t1", "q1\tdd1\t1"),
            r"qrels/test.tsv:3: document 'dd1' is not in corpus.jsonl; did",
        ),
        (lambda f: judge(f, "q9\td0\t1"), r"qrels/test.tsv:2: query 'q9' is not in queries.jsonl"),
        (lambda f: judge(f, "q0\td0\t1", "q1\td0\t0"), r"1 query has no relevant document \(q1\); give one a grade"),
        (lambda f: judge(f, "q0\td0\t1", "q0\td0\t2"), r"test.tsv:3: document 'd0' has two grades for query 'q0'"),
        (lambda f: judge(f, "q0 d0 1"), r"test.tsv:2: not a judgement: found 'q0 d0 1'"),
        (lambda f: judge(f, "q0\td0\tyes"), r"test.tsv:2: not a judgement"),
        (lambda f: judge(f), r"test.tsv: the file has no judgements"),
        (lambda f: (f / "qrels/test.tsv").write_text("q0\td0\t1\n"), r"test.tsv:1: no header"),
        (lambda f: (f / "qrels/test.tsv").rename(f / "qrels/other.tsv"), r"no train, validation or test split: found"),
        (lambda f: (f / "qrels/test.tsv").unlink(), r"qrels: no judgements"),
        (lambda f: spoil(f, "corpus.jsonl", lambda r: r[3].update(_id="d1")), r"'d1' comes twice: rows 2 and 4"),
        (lambda f: spoil(f, "queries.jsonl", lambda r: r[1].update(text=" ")), r"1 row without text \(row 2\); fill"),
        (lambda f: spoil(f, "corpus.jsonl", lambda r: r[1].pop("_id")), r"corpus.jsonl: row 2: no _id"),
        (lambda f: spoil(f, "queries.jsonl", lambda r: [x.pop("text") for x in r]), r"column 'text' not found"),
    ],
)
def test_bad_sets_of_beir(beir, spoiled, line):
    spoiled(beir)
    with pytest.raises(UserError, match=line) as caught:
        open_table(str(beir), measured="test")
    assert "\n" not in caught.value.line()


def test_bad_columns(tmp_path):
    rows = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "label": i % 2} for i in range(12)]
    with pytest.raises(UserError, match="column 'label' holds labels of pairs, not scores"):
        opened(write(tmp_path / "test.jsonl", rows).parent)
    table = opened(tmp_path, label_column="label")
    assert form_of(table.split("test")) == "scored pairs"
    with pytest.raises(UserError, match="embedding has no metric 'ndgc@10'; did you mean 'ndcg_at_10'"):
        opened(tmp_path, label_column="label", settings={"metric": "ndgc@10"}).split("test")


def test_what_a_search_cannot_do(tmp_path, toy_tokenizer_files):
    rows = [{"query": "who", "positive": "the film"}, {"query": "what", "positive": "a plot"}]
    test = opened(write(tmp_path / "test.jsonl", rows).parent).split("test")
    examples = task_of("embedding").encode(Tokenizer(toy_tokenizer_files), test, max_length=8)
    with pytest.raises(UserError, match="search by euclidean similarity is not supported"):
        task_of("embedding", {"similarity": "euclidean"}).score(np.ones((4, 2)), [], examples, test)
    with pytest.raises(UserError, match="left out of the pooling"):
        task_of("embedding", {"unpooled_prompts": True}).encode(Tokenizer(toy_tokenizer_files), test, max_length=8)


def test_a_prompt_leaves_room_for_the_text(tmp_path, toy_tokenizer_files):
    tokenizer, prompted = Tokenizer(toy_tokenizer_files), task_of("embedding", {"query_prompt": "the the the "})
    rows = [{"query": "the film", "positive": "a plot"}]
    test = opened(write(tmp_path / "test.jsonl", rows).parent).split("test")
    with pytest.raises(UserError, match=r"the prompt 'the the the ' leaves no room for a text: 5 tokens are read"):
        prompted.encode(tokenizer, test, max_length=5)
    assert prompted.encode(tokenizer, test, max_length=6).cut == 1, "a text may be cut, but not left out"
    alone = task_of("embedding", {"prompt": "the the the "})
    with pytest.raises(UserError, match="leaves no room"):
        alone.encode_texts(tokenizer, ["the film"], max_length=5)
    assert len(alone.encode_texts(tokenizer, ["the film"], max_length=6)) == 1


def test_fidelity_is_over_different_texts(tmp_path, toy_tokenizer_files):
    (tmp_path / "test.jsonl").write_text(
        "".join(json.dumps({"text": f"film {'a' * (i % 15)}"}) + "\n" for i in range(30))
    )
    test = opened(tmp_path).split("test")
    task = task_of("embedding")
    examples = task.encode(Tokenizer(toy_tokenizer_files), test, max_length=24)
    vectors = np.random.default_rng(0).normal(size=(30, 6))[np.arange(30) % 15]
    alike = task.compare(vectors[:, :4], vectors, [], examples, test)  # of another width
    assert alike.rows == 15
    assert set(alike.figures) == {"neighbour_overlap_10", "similarity_rank_correlation"}
    whole = task.compare(vectors, vectors, [], examples, test)
    assert [float(figure(np.ones((1, 15)))[0]) for figure in whole.figures.values()] == pytest.approx([1.0, 1.0])
    few = test.take(np.arange(11))  # each has ten others: all of them are neighbours
    assert not task.compare(vectors[:11, :4], vectors[:11], [], examples.take(np.arange(11)), few).figures
    undefined = task.score_against(vectors[:, :4], vectors, [], examples, test).undefined
    assert undefined == {"cosine": "the vectors have 4 dimensions, the parent's 6"}
    turned = vectors[:, [3, 0, 5, 1, 2, 4]] * [1, -1, -1, 1, -1, 1]
    found = task.score_against(turned, vectors, [], examples, test)
    assert (found.metrics, list(found.undefined)) == ({}, ["cosine"])
    assert found.undefined["cosine"].startswith("the vectors have other axes than the parent's")
    assert task.score_against(vectors + 0.1, vectors, [], examples, test).value("cosine") > 0.9

"""What `compress predict` answers: texts, lines, JSON lines and CSV, and what is wrong with them."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from echoes import Echo

from compress.commands.predict import _count, _given, predict_texts, read_all
from compress.contracts import RunOptions
from compress.data.task import Task
from compress.data.tasks import task_of
from compress.data.text.words import locate_words
from compress.errors import UserError
from compress.predict import fastest
from compress.predict.rows import answers, windows
from compress.predict.rows.answers import ModelRequest
from compress.predict.rows.inputs import EMBEDDED, BadRow, PredictionInput, TextColumns, join_answer

MODEL = ModelRequest(Path("m"))
TEXTS, PAIRS, ANSWERING, RANKING = (
    task_of(kind) for kind in ("classification", "pair-classification", "question-answering", "reranking")
)


def asked(**given: Any) -> list[PredictionInput]:
    words = {"texts": (), "pairs": (), "questions": (), "contexts": (), "file": None, **given}
    return _given(**words)


def read(path: Path, content: str | bytes, task: Task) -> list[PredictionInput]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_good(path, TextColumns.of_task(task))


def read_good(path: Path, columns: TextColumns) -> list[PredictionInput]:
    """All rows; the error of the first bad one."""
    return [row for rows in windows.divide(read_all([path], columns)) for row in rows]


# --- the command line -----------------------------------------------------------------------------------------------


def test_texts_and_pairs_of_the_command_line() -> None:
    assert asked(texts=("a", "b")) == [PredictionInput("a"), PredictionInput("b")]
    assert asked(texts=("a", "b"), pairs=("c", "d")) == [PredictionInput("a", "c"), PredictionInput("b", "d")]


def test_one_context_serves_all_questions() -> None:
    one = asked(questions=("who?", "when?"), contexts=("there",))
    assert one == [PredictionInput("who?", "there"), PredictionInput("when?", "there")]
    each = asked(questions=("who?", "when?"), contexts=("here", "there"))
    assert [found.pair for found in each] == ["here", "there"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no input text"),
        ({"file": Path("x"), "texts": ("a",)}, "--file: give texts or --file, not both"),
        ({"file": Path("x"), "questions": ("a",)}, "--file: give texts or --file, not both"),
        ({"texts": ("a",), "questions": ("b",)}, "--question: give texts or --question, not both"),
        ({"texts": ("a", "b"), "pairs": ("c",)}, "--pair: 1 second texts for 2 texts"),
        ({"file": Path("x"), "pairs": ("c",)}, "--pair: 1 second texts for 0 texts"),
        ({"questions": ("a", "b", "c"), "contexts": ("x", "y")}, "--context: 2 contexts for 3 questions"),
        ({"questions": ("a",)}, "--context: 0 contexts for 1 questions"),
        ({"contexts": ("x",)}, "--context: a context needs a question"),
        ({"texts": ("a", " ")}, "text 2: it is empty"),
        ({"texts": ("a",), "pairs": ("",)}, "--pair: it is empty"),
        ({"questions": ("a",), "contexts": ("\n",)}, "--context: it is empty"),
    ],
)
def test_what_is_missing_or_does_not_go_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        asked(**given)
    assert refused.value.line().startswith(message)


def test_a_model_for_questions_says_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = SimpleNamespace(task="question-answering")
    monkeypatch.setattr("compress.commands.predict.inspect", lambda folder: SimpleNamespace(meta=meta))
    with pytest.raises(UserError, match="no question; add --question TEXT and --context TEXT, or --file FILE with a q"):
        predict_texts(MODEL, (), (), None, RunOptions())
    with pytest.raises(UserError, match="no input text; give texts"):
        predict_texts(replace(MODEL, embeddings=True), (), (), None, RunOptions())


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_text_a_line(tmp_path: Path) -> None:
    found = read(tmp_path / "x.txt", "one\r\ntwo\nthree\n\r\n \n", TEXTS)
    assert [one.text for one in found] == ["one", "two", "three"], "blank lines at the end are no texts"
    assert read(tmp_path / "x.txt", "\n\n", TEXTS) == []
    for text in ("one\n\n\nfour\n", "\ufeff\ntwo\n", "\ntwo\n", "one\n\u3000\n"):
        with pytest.raises(UserError, match=r"x\.txt:[12]: the line is empty; write a text on it, or remove it"):
            read(tmp_path / "x.txt", text, TEXTS)
    rows = list(read_all([tmp_path / "x.txt"], EMBEDDED))
    assert [row.number for row in rows if isinstance(row, BadRow)] == [2]
    with pytest.raises(UserError, match=r"x\.txt:2: not UTF-8: byte 1 of the line"):
        read(tmp_path / "x.txt", b"one\na\xff\n", TEXTS)
    with pytest.raises(UserError, match="cannot read the file: No such file"):
        read_good(tmp_path / "none.txt", EMBEDDED)


def test_json_lines_keep_their_id(tmp_path: Path) -> None:
    lines = [{"text": "a", "id": 7}, {"sentence": "b"}]
    found = read(tmp_path / "x.jsonl", "\n\n".join(map(json.dumps, lines)), TEXTS)
    assert [(one.text, dict(one.beside)) for one in found] == [("a", {"id": 7}), ("b", {})]


def test_rows_of_two_texts(tmp_path: Path) -> None:
    both = '{"question": "who?", "context": "she"}\n'
    (one,) = read(tmp_path / "x.jsonl", both, ANSWERING)
    assert (one.text, one.pair) == ("who?", "she")
    (one,) = read(tmp_path / "lines", both, ANSWERING)
    assert (one.text, one.pair) == ("who?", "she"), "JSON lines whatever the file is called: a line is no question"
    (one,) = read(tmp_path / "x.csv", "sentence1,sentence2,id\na,b,4\n", PAIRS)
    assert (one.text, one.pair, dict(one.beside)) == ("a", "b", {"id": "4"})


def test_columns_are_found_as_those_of_training_data_are(tmp_path: Path) -> None:
    (one,) = read(tmp_path / "x.csv", "Review,stars\na,5\n", TEXTS)
    assert (one.text, one.pair) == ("a", None)
    (one,) = read(tmp_path / "x.jsonl", '{"premise": "a", "hypothesis": "b"}', PAIRS)
    assert (one.text, one.pair) == ("a", "b")
    pq.write_table(pa.table({"stars": [5], "Review": ["a"]}), tmp_path / "x.parquet")
    assert [one.text for one in read_good(tmp_path / "x.parquet", TextColumns.of_task(TEXTS))] == ["a"]


def test_tagged_words_are_given_as_a_text_or_as_the_list_that_they_were_trained_on(tmp_path: Path) -> None:
    """A list is not cut into words again: the answer has a tag for each of them."""
    tags = task_of("token-classification")
    (one,) = read(tmp_path / "x.jsonl", '{"tokens": ["see", "http://a.b/c", "."], "id": 3}', tags)
    assert (one.text, dict(one.beside)) == ("see http://a.b/c .", {"id": 3})
    assert [one.text[a:b] for a, b in locate_words(one.text)] == ["see", "http://a.b/c", "."]
    (plain,) = read(tmp_path / "x.jsonl", '{"text": "see http://a.b/c ."}', tags)
    assert len(locate_words(plain.text)) > 3
    for bad in ("[]", "[1, 2]", '[""]'):
        with pytest.raises(UserError, match="is empty or not text"):
            read(tmp_path / "x.jsonl", f'{{"tokens": {bad}}}', tags)
    with pytest.raises(UserError, match="'text' is a list, not a text; write a row for each entry"):
        read(tmp_path / "x.jsonl", '{"text": ["a", "b"]}', TEXTS)


def test_a_column_can_be_named(tmp_path: Path) -> None:
    columns = TextColumns.of_task(PAIRS).renamed("left", "right")
    lines = tmp_path / "lines"
    lines.write_text('{"text": "no", "left": "a", "right": "b"}\n')
    (one,) = read_good(lines, columns)
    assert (one.text, one.pair) == ("a", "b"), "a line of any file is an object then"
    lines.write_text('{"left": "a", "wright": "b"}\n')
    with pytest.raises(UserError, match="the row has no right; did you mean 'wright'"):
        read_good(lines, columns)
    lines.write_text("a good film\n")
    with pytest.raises(UserError, match=r"not JSON: a good film; write one object .*, or remove --text-column"):
        read_good(lines, columns)
    with pytest.raises(UserError, match="--text-pair-column b: the model reads one text; remove it"):
        EMBEDDED.renamed(None, "b")
    assert EMBEDDED.renamed(None, None) == EMBEDDED


def test_columns_are_kept_for_the_predictions(tmp_path: Path) -> None:
    columns = TextColumns.of_task(TEXTS).keep({"stars": "stars", "label": "gold"})
    lines = tmp_path / "lines"
    lines.write_text('{"text": "a", "stars": 4, "label": null, "id": 7}\n')
    (one,) = read_good(lines, columns)
    assert dict(one.beside) == {"id": 7, "stars": 4, "gold": None}, "a line of any file is an object then"
    pq.write_table(pa.table({"text": ["a"], "label": ["x"], "stars": [5], "other": [1]}), tmp_path / "x.parquet")
    (one,) = read_good(tmp_path / "x.parquet", columns)
    assert dict(one.beside) == {"stars": 5, "gold": "x"}
    (tmp_path / "x.csv").write_text("text,stars,lable\na,4,b\n")
    with pytest.raises(UserError, match="the row has no label; did you mean 'lable'"):
        read_good(tmp_path / "x.csv", columns)
    pq.write_table(pa.table({"text": ["a"], "lable": ["x"], "stars": [5]}), tmp_path / "y.parquet")
    with pytest.raises(UserError, match="the row has no label; did you mean 'lable'"):
        read_good(tmp_path / "y.parquet", columns)


def test_a_kept_column_has_no_name_of_the_prediction() -> None:
    assert join_answer({"id": 1, "gold": "b"}, {"label": "a"}) == {"id": 1, "gold": "b", "label": "a"}
    with pytest.raises(UserError, match="have a 'label' of their own; keep it under another name"):
        join_answer({"label": "b"}, {"label": "a"})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"documents": ["a", "b"]}, "'documents' is a list, not a text; write a row for each entry"),
        ({"document": ["a", "b"]}, "'document' is a list, not a text; write a row for each entry"),
        ({"answer": "a"}, "the row has no document; name its column with --text-pair-column; known: answer, query"),
    ],
)
def test_a_reranker_reads_one_document_in_each_row(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path / "x.jsonl", json.dumps({"query": "q", **row}), RANKING)


@pytest.mark.parametrize("name", ["document", "passage", "text", "Text"])
def test_a_document_without_a_query_needs_one(tmp_path: Path, name: str) -> None:
    row = json.dumps({name: "a"})
    with pytest.raises(UserError, match=r"no query; give each row a query, or one for all rows: --query TEXT"):
        read(tmp_path / "x.jsonl", row, RANKING)
    (one,) = read(tmp_path / "y.jsonl", '{"text": "q", "document": "d"}', RANKING)
    assert (one.text, one.pair) == ("q", "d")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", ":1: not JSON: not json; write one object with"),
        ("[1]", ":1: not a JSON object: [1]"),
        ('{"contxt": "x", "question": "q"}', ":1: the row has no context; did you mean 'contxt'?"),
        ('{"question": " ", "context": "x"}', ":1: the question is empty or not text"),
        ('{"question": 3, "context": "x"}', ":1: the question is empty or not text"),
        ('{"question": "q", "context": "\\ud83d"}', ":1: the context contains half a surrogate pair"),
        ('{"question": "q", "context": "x", "id": "\\ud83d"}', ":1: the id contains half a surrogate pair"),
    ],
)
def test_rows_that_cannot_be_read_are_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path / "x.jsonl", line, ANSWERING)
    assert message in refused.value.line()


def test_a_table_without_a_text_is_told_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.csv:2: the row has no text"):
        read(tmp_path / "x.csv", "other\na\n", TEXTS)
    assert read(tmp_path / "empty.csv", "", TEXTS) == []


def test_vectors_are_made_of_lines_or_of_the_text_of_each_row(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a\nb\n", encoding="utf-8")
    assert [one.text for one in read_good(tmp_path / "x.txt", EMBEDDED)] == ["a", "b"]
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    assert [one.text for one in read_good(tmp_path / "x.jsonl", EMBEDDED)] == ["a"]


def test_rows_are_counted_where_that_is_cheap(tmp_path: Path) -> None:
    for name, content, count in (("x.txt", "a\n\nb\n\n", 3), ("x.jsonl", "{}\n\n{}\n", 2), ("x.csv", "a\nb\n", None)):
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert _count(tmp_path / name, EMBEDDED) == count, name
    assert _count(Path("-"), EMBEDDED) is None


# --- answers --------------------------------------------------------------------------------------------------------


def test_answers_are_lines_or_json_in_the_order_of_the_texts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(fastest, "open_predictor", partial(Echo, str.upper))
    monkeypatch.setattr(windows, "AT_ONCE", 2)
    predict_texts(MODEL, ("a", "b", "c"), (), None, RunOptions(quiet=True))
    assert capsys.readouterr().out.splitlines() == ["a!", "b!", "c!"]
    predict_texts(MODEL, ("é",), (), None, RunOptions(json=True))
    assert capsys.readouterr().out == '{"text": "é", "label": "É"}\n'
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"x\ny\nz\n")))
    predict_texts(MODEL, (), (), Path("-"), RunOptions(quiet=True))
    assert capsys.readouterr().out.splitlines() == ["x!", "y!", "z!"]


@pytest.mark.parametrize(
    ("task", "json_names", "line"),
    [
        (TEXTS, ["text"], "a!"), (PAIRS, ["text", "text_pair"], "a!\tb\\tc"), (ANSWERING, ["question"], "a!"),
        (RANKING, ["query", "document"], "a!\tb\\tc"),
    ],
)  # fmt: skip
def test_answers_repeat_both_texts_of_a_pair_but_no_context(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], task: Task, json_names: list[str], line: str
) -> None:
    monkeypatch.setattr(Echo, "task", task)
    monkeypatch.setattr(fastest, "open_predictor", partial(Echo, str.upper))
    texts, pairs = ("a", "b\tc"), () if task is TEXTS else ("b\tc",)
    predict_texts(MODEL, texts[:1], pairs, None, RunOptions(json=True))
    found = json.loads(capsys.readouterr().out)
    assert found == {**dict(zip(json_names, texts, strict=False)), "label": "A"}
    predict_texts(MODEL, texts[:1], pairs, None, RunOptions(quiet=True))
    assert capsys.readouterr().out == f"{line}\n"


def test_json_lines_that_are_read_as_texts_are_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fastest, "open_predictor", partial(Echo, str.upper))
    warning = "warning: lines that are JSON objects are predicted as texts; to read their text, add --text-column"
    for line, request, said in (
        ('{"text": "a"}', MODEL, [warning]),
        ("{a}", MODEL, []),
        ('{"text": "a"}', replace(MODEL, text_column="text"), []),
    ):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(f"{line}\n{line}\n".encode())))
        predict_texts(request, (), (), Path("-"), RunOptions(quiet=True))
        captured = capsys.readouterr()
        assert captured.err.splitlines() == said
        assert len(captured.out.splitlines()) == 2
    (tmp_path / "c.csv").write_text('id,text\n1,"{""a"": 1}"\n')
    predict_texts(MODEL, (), (), tmp_path / "c.csv", RunOptions(quiet=True))
    assert not capsys.readouterr().err, "the cell is the text"


def test_rows_of_a_file_have_all_a_second_text_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest, "open_predictor", partial(Echo, str.upper))
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"text": "b", "text_pair": "c"}\n')
    with pytest.raises(UserError, match="some rows have a second text and some have none"):
        predict_texts(MODEL, (), (), tmp_path / "x.jsonl", RunOptions(quiet=True))


def test_vectors_are_numbers_and_their_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vector = np.array([1 / 3, -2.0], np.float32)
    embedder = SimpleNamespace(with_prompt=lambda _: lambda texts, told: [vector] * len(texts))
    monkeypatch.setattr(answers, "Embedder", lambda *_, **__: embedder)
    monkeypatch.setattr(answers, "inspect", lambda _: SimpleNamespace(is_embedder=False))
    request = ModelRequest(Path("m"), embeddings=True)
    predict_texts(request, ("a\tb",), (), None, RunOptions(quiet=True))
    numbers, text = capsys.readouterr().out.rstrip("\n").split("\t", 1)
    assert (numbers, "\t" in text) == ("0.333333 -2", False), "a tab parts the vector from its text, and nothing else"
    predict_texts(request, ("a",), (), None, RunOptions(json=True))
    assert json.loads(capsys.readouterr().out) == {"text": "a", "embedding": [0.3333333, -2.0]}
    with pytest.raises(UserError, match="--runtime onnxruntime: only the vectors of embedding models"):
        predict_texts(replace(request, runtime="onnxruntime"), ("a",), (), None, RunOptions())

"""SQuAD's own files as rows, and what is no such file."""

from __future__ import annotations

from typing import Any

import pytest

from compress.data.reading.squad import rows_of


def document(*questions: Any) -> dict[str, Any]:
    return {"data": [{"title": "T", "paragraphs": [{"context": "anna is here", "qas": list(questions)}]}]}


ASKED = {"id": "1", "question": "who?", "answers": [{"text": "anna", "answer_start": 0}]}


def test_a_row_a_question() -> None:
    again = ASKED | {"id": "2", "answers": [{"text": "anna", "answer_start": 0}, {"text": "is", "answer_start": 5}]}
    rows = rows_of(document(ASKED, again))
    assert rows == [
        {"id": "1", "title": "T", "context": "anna is here", "question": "who?",
         "answers": {"text": ["anna"], "answer_start": [0]}},
        {"id": "2", "title": "T", "context": "anna is here", "question": "who?",
         "answers": {"text": ["anna", "is"], "answer_start": [0, 5]}},
    ]  # fmt: skip


def test_a_question_without_an_answer() -> None:
    """Version 2 lists plausible answers beside; they are not the answer."""
    impossible = ASKED | {"is_impossible": True}
    (row,) = rows_of(document(impossible)) or []
    assert row["answers"] == {"text": [], "answer_start": []}


@pytest.mark.parametrize("answers", [None, "anna", ["anna"], [1]])
def test_answers_of_another_form_are_kept_for_the_reader_to_report(answers: Any) -> None:
    (row,) = rows_of(document(ASKED | {"answers": answers})) or []
    assert row["answers"] == answers


def test_missing_keys_read_none() -> None:
    assert rows_of({"data": [{"paragraphs": [{"qas": [{}]}]}]}) == [
        dict.fromkeys(("id", "title", "context", "question", "answers"))
    ]


@pytest.mark.parametrize(
    "other",
    [None, [], {}, {"data": []}, {"data": {}}, {"data": [1]}, {"data": [{"text": "a"}]}, {"data": [{"paragraphs": 1}]},
     {"data": [{"paragraphs": [1]}]}, {"data": [{"paragraphs": [{}]}]}, {"data": [{"paragraphs": [{"qas": ["a"]}]}]}],
)  # fmt: skip
def test_other_documents_are_not_taken(other: Any) -> None:
    assert rows_of(other) is None

"""Label names between our list and the two maps of a config.json."""

from __future__ import annotations

from typing import Any

import pytest

from compress.encoder.config.encoder import HeadConfig
from compress.errors import UserError
from compress.modelfolder.labels import count_labels, names_of, read_names, read_problem, write_names

NAMES = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}


def test_names_are_in_the_order_of_their_ids() -> None:
    assert read_names(NAMES, 2, "c") == ["no", "yes"]
    assert read_names({"id2label": {1: "b", 0: "a"}}, 2, "c") == ["a", "b"]
    assert read_names({}, 2, "c") == ["LABEL_0", "LABEL_1"]
    assert read_names({"id2label": {"0": 1, "1": 2}}, 2, "c") == ["1", "2"], "stars as numbers"
    assert names_of(HeadConfig("question_answering"), {"id2label": {"0": "LABEL_0"}}, "c") == ["start", "end"]


def test_what_is_written_is_read_again() -> None:
    for problem in ("single_label", "multi_label", "regression"):
        names = ["x"] if problem == "regression" else ["b", "a", "ü"]
        values = write_names(names, problem)
        assert read_names(values, len(names), "c") == names
        assert count_labels(values, "c") == len(names)
        assert read_problem(values, len(names), "c") == problem


@pytest.mark.parametrize(
    ("values", "count", "message"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, 2, r"id2label has ids 0, 2: the classifier's ids are 0\.\.1"),
        ({"id2label": {}}, 1, "id2label has ids none"),
        ({"id2label": {"0": "a", "1": "a"}}, 2, "two labels named 'a'"),
        ({"id2label": {"0": "a", "one": "b"}}, 2, "id2label has the key 'one'"),
        ({"id2label": ["a"]}, 1, "id2label must map ids to names"),
        ({"id2label": {"0": ["a"]}}, 1, "id2label must map ids to names"),
        ({**NAMES, "label2id": {"no": 1, "yes": 0}}, 2, "label2id is not the inverse of id2label"),
    ],
)
def test_names_that_do_not_fit_are_rejected(values: dict[str, Any], count: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_names(values, count, "c")


def test_the_number_of_labels_before_weights_are_seen() -> None:
    assert (count_labels({}, "c"), count_labels({"num_labels": 5}, "c"), count_labels(NAMES, "c")) == (2, 5, 2)
    for bad in (0, True, "3", 100_001):
        with pytest.raises(UserError, match="the number of labels is"):
            count_labels({"num_labels": bad}, "c")


def test_the_problem_where_none_is_named() -> None:
    assert (read_problem({}, 1, "c"), read_problem({}, 2, "c")) == ("regression", "single_label")
    with pytest.raises(UserError, match="problem_type 'ranking' is not supported: known: single_label_classification"):
        read_problem({"problem_type": "ranking"}, 2, "c")

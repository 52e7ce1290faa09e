"""What a teacher says of labelled rows: how often it is right, how sure it is, and how often sure and wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.stages.distill.teacher_facts import compare_with_labels
from compress.stages.shared.stage import TEACHER_CONFIDENT, TEACHER_NOISE, TEACHER_RIGHT

SURE, UNSURE = [9.0, 0.0], [0.1, 0.0]


class Tagged(SimpleNamespace):
    """Rows of several words each."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


def train(labels: list[Any], offsets: list[int] | None = None) -> Any:
    if offsets is None:
        return SimpleNamespace(labels=np.array(labels), words=None)
    return Tagged(labels=np.array(labels), words=np.zeros(len(labels)), offsets=np.array(offsets))


def test_right_sure_and_both() -> None:
    found = compare_with_labels(np.array([SURE, SURE, UNSURE, UNSURE]), train([0, 1, 0, 1]), 4)
    assert found == {TEACHER_RIGHT: 0.5, TEACHER_CONFIDENT: 0.5, TEACHER_NOISE: 0.25}


def test_only_labelled_rows_count() -> None:
    logits = np.array([SURE, SURE, UNSURE])
    assert compare_with_labels(logits, train([0, 1, 1]), 1)[TEACHER_RIGHT] == 1.0
    assert compare_with_labels(logits, train([0, -100, 1]), 3) == pytest.approx(
        {TEACHER_RIGHT: 0.5, TEACHER_CONFIDENT: 0.5, TEACHER_NOISE: 0.0}
    )


def test_tags_are_counted_by_token_of_the_labelled_rows() -> None:
    logits = np.array([SURE, UNSURE, SURE, SURE])
    tagged = train([0, -100, 0, 1], offsets=[0, 3, 4])
    assert compare_with_labels(logits, tagged, 1)[TEACHER_RIGHT] == 1.0
    assert compare_with_labels(logits, tagged, 2)[TEACHER_NOISE] == pytest.approx(1 / 3)
    assert compare_with_labels(logits, tagged, 9) == compare_with_labels(logits, tagged, 2)


@pytest.mark.parametrize("labels", [[0.5, 1.0], [[0, 1], [1, 0]], [-100, -1]])
def test_scores_several_labels_and_no_labels_say_nothing(labels: list[Any]) -> None:
    assert compare_with_labels(np.array([SURE, SURE]), train(labels), 2) == {}


def test_no_rows_and_rows_of_another_number() -> None:
    assert compare_with_labels(np.zeros((0, 2)), train([0]), 0) == {}
    assert compare_with_labels(np.array([SURE]), train([0, 1]), 2) == {}

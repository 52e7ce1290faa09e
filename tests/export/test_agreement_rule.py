"""When a file's answers are too often others than the model's to be written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.onnx.check import Check, ReferenceOutputs


def check(changed: int, answers: int, mean: float = 0.01) -> Check:
    agreement = 1 - changed / answers
    return Check(256, "rows", 1.0, mean, 1.0, agreement, 1e-4, error=0.1, answers=answers)


@pytest.mark.parametrize(
    ("changed", "answers", "refused"),
    [(0, 256, False), (1, 256, False), (3, 256, False), (4, 256, True), (30, 256, True), (1, 8, True), (60, 9000, True),
     (46, 9000, False), (4000, 9000, True), (100, 20_000, False), (101, 20_000, True)],
)  # fmt: skip
def test_few_other_answers_are_chance(changed: int, answers: int, refused: bool) -> None:
    """0.5 % of 256 are 1.3: up to three come up by chance, four do not."""
    assert (check(changed, answers).complaint is not None) == refused


def test_a_mean_that_is_too_large_is_refused_in_any_case() -> None:
    complaint = check(0, 256, mean=0.06).complaint
    assert complaint is not None
    assert "allowed: at most 5.0e-02 and at least 99.5 %" in complaint


@pytest.mark.parametrize(
    ("distance", "changed", "kept", "refused"),
    [
        (0.11, 3, 1.0, False),
        (0.11, 4, 1.0, True),  # the model answers as its floats do, so a file that answers otherwise is wrong
        (0.11, 4, 0.99, False),
        (0.11, 9, 0.99, False),
        (0.11, 20, 0.99, True),
        (0.13, 0, 0.99, True),  # further from the float model than the quantized model is
    ],
)
def test_what_is_as_near_to_the_floats_as_the_model_is_may_round_otherwise(
    distance: float, changed: int, kept: float, refused: bool
) -> None:
    """Deep models carry on which code a number in the middle got: its roundings and a file's are independent then."""
    agreement = 1 - changed / 256
    made = Check(256, "rows", 1.0, 0.09, 1.0, agreement, 1e-4, error=0.1, answers=256, distance=distance, kept=kept)
    assert (made.complaint is not None) == refused


def test_figures_of_a_quantized_model() -> None:
    """By hand: two rows of two numbers."""
    batch: Any = SimpleNamespace(rows=2, extra={})
    floats, rounded, file = (np.array(x) for x in ([[1.0, 0], [0, 1]], [[1.5, 0], [1.5, 1]], [[1, 0.5], [0, 1.5]]))
    check = ReferenceOutputs([batch], [rounded], "rows", [floats]).check(lambda _: file)
    assert (check.rows, check.answers, check.difference, check.largest) == (2, 2, 1.5, 1.5)
    assert (check.mean, check.error, check.distance) == (0.75, 0.5, 0.25)
    assert (check.agreement, check.kept) == (0.5, 0.5)


def test_vectors_are_told_by_their_cosine_and_documents_of_queries_as_pairs() -> None:
    """Which entry of a vector is largest says nothing."""
    batch: Any = SimpleNamespace(rows=3, extra={"queries": None})
    ours, file = (np.array(x) for x in ([[1.0, 0], [3, 4], [0, 0]], [[1.0, 0], [4, 3], [0, 0]]))
    check = ReferenceOutputs([batch], [ours], "x/test", vectors=True).check(lambda _: file)
    assert check.cosine == pytest.approx(24 / 25)
    assert check.sentence() == "checked on 3 pairs of x/test: largest difference 1.0e+00, smallest cosine 0.960000"

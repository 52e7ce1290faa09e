"""When a file's answers are too often others than the model's to be written."""

from __future__ import annotations

import pytest

from compress.export.check import Check


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
    assert "allowed are 5.0e-02 and 99.5 %" in complaint

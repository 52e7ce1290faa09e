"""Quality figures against a teacher: what is kept, what is kept above chance, and who wins row by row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.data.task import ScoredAnswers
from compress.measure.quality import compare_quality, compute_retained_quality, gap_figures, score_fake_quantized
from evaluation.quality.draws import of_mean


def scored(right: list[bool], *, chance: float = 0.0, knows_rows: bool = True) -> ScoredAnswers:
    rows = np.array(right)
    return ScoredAnswers(
        len(rows), {"accuracy": of_mean(rows)}, right=rows if knows_rows else None, chance={"accuracy": chance}
    )


def rows(count: int) -> list[bool]:
    return [i < count for i in range(10)]


def test_what_is_kept_is_a_share_of_the_teacher() -> None:
    found = compute_retained_quality(scored(rows(6)), scored(rows(8)), "accuracy", 50)
    assert found == {"vs_teacher/quality_kept_pct": pytest.approx(75.0)}


def test_what_is_kept_above_chance_leaves_the_best_constant_answer_out() -> None:
    found = compute_retained_quality(scored(rows(6), chance=0.5), scored(rows(9)), "accuracy", 50)
    assert found["vs_teacher/quality_kept_above_chance_pct"] == pytest.approx(100 * 0.1 / 0.4)
    no_better = compute_retained_quality(scored(rows(6), chance=0.9), scored(rows(9)), "accuracy", 50)
    assert list(no_better) == ["vs_teacher/quality_kept_pct"], "a teacher at chance has nothing above it"
    two = compute_retained_quality(scored([False] * 2, chance=0.5), scored([True] * 2), "accuracy", 50)
    assert two == {"vs_teacher/quality_kept_pct": 0.0}, "-100 % above chance, where two rows show nothing"


def test_a_teacher_that_is_never_right_is_no_measure() -> None:
    assert compute_retained_quality(scored(rows(6)), scored(rows(0)), "accuracy", 50) == {}


def test_the_sign_test_counts_rows_that_only_one_answers_right() -> None:
    ours, theirs = scored([True] * 6 + [False] * 4), scored([False] * 6 + [True] * 4)
    found = compare_quality(ours, theirs, "accuracy", 50)
    assert found["vs_teacher/accuracy_difference"] == pytest.approx(0.2)
    assert found["vs_teacher/accuracy_difference_low"] <= 0.2 <= found["vs_teacher/accuracy_difference_high"]
    assert found["vs_teacher/p_value"] == pytest.approx(0.754, abs=1e-3), "6 wins and 4 losses"
    assert compare_quality(ours, ours, "accuracy", 50)["vs_teacher/p_value"] == 1.0
    assert "vs_teacher/p_value" not in compare_quality(scored(rows(6), knows_rows=False), theirs, "accuracy", 50)
    assert compare_quality(ours, theirs, "f1", 50) == {}, "where one has no such metric"


def test_a_gap_that_is_not_known_has_no_figure() -> None:
    assert gap_figures(None) == {}
    gap: Any = SimpleNamespace(value=SimpleNamespace(value=0.2, low=0.1, high=0.3), small=2)
    assert gap_figures(gap) == {
        "groups/gap": 0.2, "groups/gap_low": 0.1, "groups/gap_high": 0.3, "groups/too_small": 2.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("runtime", "quantization", "measured"),
    [("onnxruntime", "int8", True), ("torch", "int8", False), ("onnxruntime", None, False)],
)
def test_rounded_floats_are_scored_beside_a_quantized_file(
    runtime: str, quantization: str | None, measured: bool
) -> None:
    asked: list[str] = []
    floats = SimpleNamespace(logits=lambda examples: "logits of floats")
    task = SimpleNamespace(score=lambda logits, *_: scored(rows(7)) if logits == "logits of floats" else None)
    predictor: Any = SimpleNamespace(
        runtime=runtime, config=SimpleNamespace(quantization=quantization), task=task, label_names=(),
        with_runtime=lambda name: (asked.append(name), floats)[1],
    )  # fmt: skip
    nothing: Any = None
    found = score_fake_quantized(predictor, nothing, nothing)
    assert found == ({"fake_quantized/accuracy": pytest.approx(0.7)} if measured else {})
    assert asked == (["torch"] if measured else [])

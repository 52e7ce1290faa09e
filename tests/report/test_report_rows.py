"""What the tables of measured models call their columns and rows."""

from __future__ import annotations

from typing import Any

import pytest

from compress.contracts import Measurement
from compress.recipe import LoadedRecipe
from compress.report.rows import churn_sentence, churn_table, comparison, conditions, headline, runtime_name, title
from compress.run.selection import Selection
from evaluation.quality.churn import Group

VALUES = {
    "quality/accuracy": 0.9,
    "vs_teacher/accuracy_difference": 0.01,
    "vs_teacher/accuracy_difference_low": 0.0,
    "vs_teacher/accuracy_difference_high": 0.02,
    "vs_teacher/agreement_pct": 98.0,
    "vs_teacher/kl": 0.1,
    "vs_teacher/correlation": 0.9,
}
TORCH = {"runtime": "torch 2.5.1, packed", "precision": "fp32"}
ONNX = {"runtime": "onnxruntime 1.20.0, padded", "precision": "int8"}


def measured(context: dict[str, str] | None = None, **values: float) -> Measurement:
    here = {"device": "AMD EPYC", "threads": "1", "latency_shape": "1 x 128", "repeats": "50", "throughput_mix": "mix"}
    return Measurement({**VALUES, **values}, {**here, "metric": "accuracy", **TORCH, **(context or {})})


def labels(measurements: list[Measurement], *more: Any) -> list[str]:
    _, rows = comparison([str(i) for i, _ in enumerate(measurements)], measurements, *more)
    return [row[0] for row in rows]


@pytest.mark.parametrize(
    ("runtime", "precision", "name"),
    [
        ("torch 2.5.1, packed", "fp32", "torch fp32"),
        ("torch 2.5.1, packed", "bf16", "torch bf16"),
        ("onnxruntime 1.20.0, padded", "int8", "onnxruntime int8"),
        ("torch 2.5.1, integers, packed", "int8", "torch integers int8"),
        (
            "cascade of 3: onnxruntime 1.20.0, length buckets; torch 2.5.1, packed; onnxruntime 1.20.0, length buckets",
            "int8, fp32",
            "cascade of 3 (onnxruntime, torch) int8, fp32",
        ),
        ("torchao 0.7, torch 2.5.1, compiled, packed", "int8 per-token", "torchao compiled int8 per-token"),
    ],
)
def test_a_runtime_has_a_short_name(runtime: str, precision: str, name: str) -> None:
    assert runtime_name({"runtime": runtime, "precision": precision}) == name


def test_models_of_one_runtime_have_it_below_the_table() -> None:
    both = [measured(), measured()]
    assert "runtime" not in labels(both)
    assert conditions(both[1], both)[0] == "speed on AMD EPYC, 1 thread, torch 2.5.1, packed, fp32"


def test_models_of_several_runtimes_have_a_row() -> None:
    found = [measured(), measured(), measured(ONNX)]
    _, rows = comparison(["teacher", "student", "int8"], found)
    assert rows[0] == ("runtime", "torch fp32", "torch fp32", "onnxruntime int8")
    assert conditions(found[2], found)[0] == "speed on AMD EPYC, 1 thread"


def test_the_footer_says_what_all_share() -> None:
    found = [measured(), measured({"precision": "bf16"})]
    _, rows = comparison(["a", "b"], found)
    assert rows[0] == ("runtime", "torch fp32", "torch bf16")
    assert conditions(found[1], found)[0] == "speed on AMD EPYC, 1 thread, torch 2.5.1, packed"


def test_a_ratio_that_is_unknown_is_said_to_be() -> None:
    values = {**VALUES, "speed/latency_p50_ms": 2.0, "speed/throughput_sps": 100.0, "vs_teacher/size_ratio": 2.0}
    values["vs_teacher/throughput_ratio"] = 1.5
    compared = Measurement(values, measured().context)
    said = [line for line in conditions(compared, [measured(), compared]) if "how much faster" in line]
    assert said == ["how much faster (latency) is unknown: the timings vary too much; measure again on an idle machine"]
    known = Measurement({**values, "vs_teacher/speedup": 2.0}, measured().context)
    (said,) = [line for line in conditions(known, [measured(), compared, known]) if "how much faster" in line]
    assert said.startswith("how much faster (latency) is unknown where the table shows none: the timings vary")
    assert not any("unknown" in line for line in conditions(known, [measured(), known]))


def test_a_latency_of_a_busy_machine_is_missing_or_an_estimate() -> None:
    busy = {"contaminated": "yes"}
    assert "no latency: other programs used" in conditions(measured(busy))[-1]
    found = Measurement({**VALUES, "speed/latency_p50_ms": 2.0}, measured(busy).context)
    assert conditions(found)[-1].startswith("the latency is an estimate: other programs used")


def test_few_rows_a_second_have_decimals() -> None:
    """A query with 30 documents is one row."""
    shown = [Measurement({"speed/throughput_sps": value}, {}) for value in (1.43, 3.36, 1234.5)]
    _, rows = comparison(["a", "b", "c"], shown)
    assert ("throughput", "1.43 rows/s", "3.36 rows/s", "1,234 rows/s") in rows


def test_the_majority_class_is_given_by_its_accuracy_whatever_the_metric() -> None:
    tagger = Measurement({"quality/entity_f1": 0.5, "quality/majority_baseline": 0.92}, {"metric": "entity_f1"})
    _, rows = comparison(["a"], [tagger])
    assert ("majority-class accuracy", "92.00 %") in rows


def test_a_model_that_was_not_timed_has_no_runtime() -> None:
    scored = Measurement({"quality/accuracy": 0.5}, {"metric": "accuracy"})
    assert "runtime" not in labels([measured(), scored])
    assert comparison(["a", "b", "c"], [measured(), measured(ONNX), scored])[1][0][-1] == ""


@pytest.mark.parametrize("reference", ["teacher", "parent"])
def test_rows_name_the_model_that_others_are_compared_with(reference: Any) -> None:
    found = labels([measured()], reference)
    for label in (f"accuracy against {reference}, points", f"agreement with {reference}", f"KL to {reference}, nats"):
        assert label in found
    assert ("teacher" in " ".join(found)) is (reference == "teacher")


def test_agreement_of_rerankers_says_what_agrees() -> None:
    found = labels([measured({"metric": "ndcg_at_10"})], "parent")
    assert "same first document as parent" in found
    assert "agreement with parent" not in found
    assert "agreement with parent" in labels([measured({"metric": "spearman"})], "parent"), "of pairs nothing is ranked"


def test_the_metric_is_not_shown_twice() -> None:
    values = {"quality/neighbour_overlap_10": 0.9, "vs_teacher/neighbour_overlap_10": 0.9}
    shared = "10 nearest neighbours shared with parent"
    assert shared in labels([measured(**values)], "parent")
    found = labels([measured({"metric": "neighbour_overlap_10"}, **values)], "parent")
    assert found[0] == "10 nearest neighbours kept"
    assert shared not in found


def test_changed_rows_name_it_too() -> None:
    groups = [Group("all", "all rows", 10, 2, 1, 1), Group("teacher's confidence", "high", 5, 1, 1, 0)]
    columns, rows = churn_table(groups, "parent")
    assert columns[0] == "predictions that differ from the parent"
    assert rows[1][0] == "parent's confidence: high"
    (line,) = churn_sentence(groups, "parent")
    assert line == (
        "predictions differ from the parent's on 2 of 10 rows: 1 went from right to wrong, 1 from wrong to right"
    )


@pytest.mark.parametrize(
    ("name", "verb", "reference"),
    [("q8bert", None, "teacher"), ("q8bert", "quantize", "parent"), ("quantize", None, "parent")],
)
def test_only_a_model_that_teaches_is_a_teacher(name: str, verb: str | None, reference: str) -> None:
    assert Selection.of(LoadedRecipe.read(name).recipe, verb, None).reference == reference


def test_the_f1_of_two_labels_names_the_positive_one() -> None:
    assert title("f1_binary") == "F1 of the positive label"
    context = {"metric": "f1_binary", "positive_label": "spam\x1b"}
    found = labels([measured(context, **{"quality/f1_binary": 0.5, "vs_teacher/f1_binary_difference": 0.1})], "parent")
    assert found[0] == "F1 of 'spam\\x1b'"
    assert "F1 of 'spam\\x1b' against parent, points" in found


def test_the_headline_of_a_run_has_the_figures_of_the_trade_off() -> None:
    values = {
        "quality/accuracy": 0.9,
        "quality/accuracy_low": 0.88,
        "quality/accuracy_high": 0.92,
        "size/disk_mb": 23.5,
    }
    assert headline(Measurement(values, {"metric": "accuracy"})) == "accuracy 90.00 % [88.00, 92.00], 23.50 MB"
    simulated = {"fake_quantized/accuracy": 0.9, "speed/latency_p50_ms": 4.1}
    assert headline(Measurement(simulated, {"metric": "accuracy"})) == "accuracy 90.00 %, simulated, p50 4.10 ms"
    assert headline(Measurement({}, {})) == ""


def test_rows_without_a_figure_are_not_called_measured() -> None:
    context = {**measured().context, "dataset": "texts/test", "rows": "50", "task": "embedding"}
    values = {name: value for name, value in VALUES.items() if not name.startswith(("quality/", "vs_teacher/"))}
    wanted = "no quality is measured on 50 rows of texts/test: texts alone are compared with a parent, add --against"
    assert conditions(Measurement(values, context))[0] == wanted
    for name in ("quality/spearman", "fake_quantized/spearman", "vs_teacher/cosine"):
        scored = Measurement({**values, name: 0.8}, context)
        assert conditions(scored)[0] == "quality on 50 rows of texts/test; intervals are 95 %", name

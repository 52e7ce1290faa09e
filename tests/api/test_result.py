"""What a function returns: figures, a table and a plot, whichever document its command prints."""

from __future__ import annotations

from typing import Any

import pytest

from compress.api.result import Result

CONTEXT = {"metric": "accuracy", "dataset": "reviews/test", "dataset_digest": "d", "rows": "64", "device": "cpu"}


def measured(name: str, accuracy: float, megabytes: float, ms: float) -> dict[str, Any]:
    values = {
        "quality/accuracy": accuracy, "quality/accuracy_low": accuracy - 0.1, "quality/accuracy_high": accuracy + 0.1,
        "size/disk_mb": megabytes, "speed/latency_p50_ms": ms,
    }  # fmt: skip
    return {"name": name, "role": "student", "values": values, "context": CONTEXT}


def bounds(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01}


def curve(name: str, *accuracies: float | None) -> dict[str, Any]:
    points = [
        {"rate": 0.1 * i, "values": {} if one is None else {"accuracy": bounds(one)}, "lost": None}
        for i, one in enumerate(accuracies)
    ]
    return {"name": name, "folder": f"models/{name}", "metric": "accuracy", "points": points}


def test_models_that_were_measured() -> None:
    result = Result("evaluate", {"models": [measured("a", 0.9, 10, 2), measured("b", 0.8, 5, 1)], "reference": "a"})
    assert list(result.metrics) == ["a", "b"]
    assert result.metrics["b"]["size/disk_mb"] == 5
    assert list(result.table[0])[1:3] == ["a", "b"]
    assert "<svg" in result._repr_html_()
    assert (result.folder, result.run_id) == (None, None)


@pytest.mark.parametrize("reference", ["teacher", "parent"])
def test_the_first_model_is_called_in_its_column_what_the_rows_call_it(reference: str) -> None:
    teacher = {**measured("teacher", 0.9, 10, 2), "role": "teacher"}
    result = Result("prune_vocab", {"models": [teacher, measured("b", 0.8, 5, 1)], "reference": reference})
    assert list(result.table[0])[1:] == [reference, "b"]


def test_what_a_caller_changes_does_not_change_the_result() -> None:
    result = Result("evaluate", {"models": [measured("a", 0.9, 10, 2)]})
    result["models"].clear()
    result.to_dict()["models"].clear()
    result.metrics["a"].clear()
    assert result.metrics["a"]["quality/accuracy"] == 0.9


def test_one_model_and_models_without_a_latency_are_no_plot() -> None:
    one = measured("a", 0.9, 10, 2)
    untimed = measured("b", 0.8, 5, 1)
    del untimed["values"]["speed/latency_p50_ms"]
    assert "<svg" not in Result("evaluate", {"models": [one]})._repr_html_()
    assert "<svg" not in Result("evaluate", {"models": [one, untimed]})._repr_html_()


def test_curves_of_robustness_are_a_table_and_no_figures() -> None:
    apart = {"points": [{"rate": 0.0, "value": bounds(0.1)}, {"rate": 0.1, "value": None}]}
    document = {"disturbance": "typos", "rows": 64, "models": [curve("a", 0.9, 0.5), curve("b", 0.8, None)]}
    result = Result("evaluate", {**document, "difference": apart, "folder": "runs/typos-a"})
    columns, rows = result.table
    assert columns == ("typo noise", "a", "lost, points", "b", "lost, points", "difference, points")
    assert rows[0] == ("0 %", "90.00 % [89.00, 91.00]", "", "80.00 % [79.00, 81.00]", "", "+10.00 [+9.00, +11.00]")
    assert rows[1][3:] == ("undefined", "", "undefined")
    assert result.metrics == {}
    assert "<svg" not in result._repr_html_()


def test_the_checks_of_a_certificate_are_its_table() -> None:
    checks = [{"what": "size", "verdict": "holds", "why": "1.0 of 2.0 MB"}]
    result = Result("verify", {"folder": "small/model", "checks": checks})
    assert result.table[1] == [("size", "holds", "1.0 of 2.0 MB")]
    assert "1.0 of 2.0 MB" in repr(result)


def test_plans_of_fit_that_were_not_timed_are_left_out() -> None:
    timed = {"name": "half", "value": 0.9, "drop": 1.0, "drop_low": 0.5, "drop_high": 2.0, "mb": 5.0}
    plans = [{**timed, "timing": {"p50": 1.5}}, {"name": "planned", "mb": 4.0}]
    result = Result("fit", {"plans": plans, "certificate": {"quality": {"metric": "f1"}}})
    assert list(result.metrics) == ["half"]
    assert result.metrics["half"] == {
        "quality/f1": 0.9, "quality/f1_low": pytest.approx(0.89), "quality/f1_high": pytest.approx(0.905),
        "size/disk_mb": 5.0, "speed/latency_p50_ms": 1.5,
    }  # fmt: skip
    assert "quality/accuracy" in Result("fit", {"plans": plans, "certificate": None}).metrics["half"]


def test_other_documents_are_their_plain_values_by_path() -> None:
    document = {"name": "x", "version": None, "gates": {"drop": 0.5, "met": True}, "rows": [], "list": [1]}
    result = Result("promote", document)
    assert result.table == (
        ("", "promote"), [("name", "x"), ("version", ""), ("gates.drop", "0.5"), ("gates.met", "True")],
    )  # fmt: skip
    assert result.metrics == {}
    with pytest.raises(KeyError):
        _ = result["nothing"]


def test_an_empty_document_is_shown_too() -> None:
    result = Result("verify", {})
    assert repr(result).splitlines()[0] == "Result of verify"
    assert "<tbody></tbody>" in result._repr_html_()


def test_names_and_notes_are_escaped_in_html() -> None:
    bad = "<script>alert(1)</script>"
    page = Result("v", {bad: bad, "notes": [bad]})._repr_html_()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 3
    page = Result("v", {"models": [measured(bad, 0.9, 10, 2), measured("b", 0.8, 5, 1)]})._repr_html_()
    assert "<script" not in page

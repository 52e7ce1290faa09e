"""Tables and sentences about measured models: unknown metrics, foreign names, and slices that could not be tested."""

from __future__ import annotations

from typing import Any

import pytest

from compress.contracts import Measurement
from compress.report.rows import (
    SLICES_NOTE,
    comparison,
    description,
    explain_no_figures,
    format_difference,
    format_figure,
    gain_sentence,
    groups_sentence,
    groups_table,
    has_figures,
    markdown,
    name_difference,
    points_header,
    slices_footnote,
    slices_sentence,
    slices_table,
    storage_sentence,
)
from evaluation.quality.intervals import Interval
from evaluation.quality.slices import Slice


def interval(value: float, low: float, high: float) -> Interval:
    return Interval(value, low, high, 100, 0)


def compared(name: str, difference: float, adjusted: float | None) -> Slice:
    apart = interval(difference, difference - 0.01, difference + 0.01)
    return Slice("label", name, 100, interval(0.8, 0.7, 0.9), 0.8 - difference, apart, 0.01, adjusted)


SMALL = Slice("label", "rare", 3, why="fewer than 30 rows")
UNDEFINED = Slice("label", "odd", 100, interval(0.8, 0.7, 0.9), why="the parent's metric is undefined on these rows")


@pytest.mark.parametrize("values", [{}, {"_low": 1234.5, "_high": 1234.75}])
def test_a_metric_of_a_task_of_ones_own_has_a_row_with_its_interval(values: dict[str, float]) -> None:
    figures = {f"quality/bleu{end}": value for end, value in {"": 1234.625, **values}.items()}
    _, rows = comparison(["a", "b"], [Measurement(figures, {"metric": "bleu"}), Measurement({}, {})])
    assert rows == [("bleu", "1234.625 [1234.500, 1234.750]" if values else "1234.625", "")]
    assert format_figure("bleu", 0.12345) == "0.123"


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\rb", "a\u2028b", "a\x0bb", "a\x85b"])
def test_a_name_with_a_line_break_stays_in_its_cell(text: str) -> None:
    assert markdown(("", "x"), [(text, "1")]).split("\n") == ["|  | x |", "|---|--:|", "| a b | 1 |"]
    assert description(("", "x"), [], [text]).endswith("\n\n- a b")


def test_a_name_cannot_add_cells_or_tags() -> None:
    (row,) = markdown(("",), [("a|b\\|<img src=x>",)]).split("\n")[2:]
    assert row == "| a\\|b\\\\\\|&lt;img src=x> |"
    assert "<" not in description(("",), [], ["<script>"])


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ((1.0, 0.2, 1.8), "A is better than B"),
        ((-1.0, -1.8, -0.2), "A is worse than B"),
        ((1.0, 0.0, 2.0), "no measurable difference between A and B"),
        ((0.0, 0.0, 0.0), "no measurable difference between A and B"),
    ],
)
def test_a_difference_is_one_where_its_interval_leaves_zero_out(points: Any, verdict: str) -> None:
    assert gain_sentence("A", "B", "f1_macro", points).startswith(f"{verdict} on these rows ({points[0]:+.2f} points")


def test_value_and_difference_of_a_metric_have_one_scale() -> None:
    """Spearman 0.390 is not "+0.24 points" above another."""
    for metric, value, difference, name, head in (
        ("spearman", "0.390", "+0.024 [-0.010, +0.050]", "Spearman", ""),
        ("accuracy", "39.00 %", "+2.40 [-1.00, +5.00]", "points of accuracy", ", points"),
    ):
        assert format_figure(metric, 0.39) == value
        assert format_difference(metric, 0.024, -0.01, 0.05) == difference
        assert (name_difference(metric), points_header(metric)) == (name, head)
    measured = Measurement(
        {"quality/spearman": 0.39, "vs_teacher/spearman_difference": 0.0024}, {"metric": "spearman"}
    )  # fmt: skip
    rows = dict(comparison(("a",), [measured], "parent")[1])
    assert rows["Spearman"] == "0.390"
    assert rows["Spearman against parent"] == "+0.002"
    found = [compared("a", -0.02, 0.01)]
    assert slices_table(found, "spearman")[0][4] == "difference"
    assert slices_table(found, "spearman")[1][0][2:5] == ("0.800 [0.700, 0.900]", "0.820", "-0.020 [-0.030, -0.010]")
    assert slices_sentence(found, "spearman")[0].endswith("label a -0.020 [-0.030, -0.010]")
    assert "(+0.020 Spearman, 95 % interval +0.010 to +0.030)" in gain_sentence("A", "B", "spearman", (2.0, 1.0, 3.0))


def test_slices_that_fail_more_are_named_worst_first_and_at_most_three() -> None:
    found = [compared(f"s{i}", -0.02 * i, 0.01) for i in range(1, 6)] + [compared("better", 0.2, 0.01)]
    (line,) = slices_sentence(found, "accuracy")
    assert line.startswith(
        "slices: the model fails more than its parent on 5 of 6 groups: label s5 -10.00 [-11.00, -9.00] points;"
    )
    assert [f"s{i}" in line for i in range(1, 6)] == [False, False, True, True, True]
    assert line.endswith("and 2 more")


def test_slices_of_one_model_are_not_called_paired() -> None:
    assert slices_footnote([compared("a", 0.0, 0.9), SMALL]) == SLICES_NOTE
    assert "paired" not in slices_footnote([SMALL, UNDEFINED])


def test_slices_without_figures_say_why() -> None:
    assert has_figures([compared("a", 0.0, 0.9), SMALL])
    assert not has_figures([SMALL, SMALL])
    said = explain_no_figures("mine", [SMALL, SMALL])
    assert said == "slices of mine: none of the groups of rows has a figure: fewer than 30 rows"
    assert explain_no_figures("mine", []).endswith(": the rows have no groups")


def test_slices_that_were_not_tested_are_counted_whatever_the_reason() -> None:
    (line,) = slices_sentence([compared("a", 0.0, 0.9), SMALL, UNDEFINED], "accuracy")
    assert line == (
        "slices: the model does not measurably fail more than its parent on the only tested group of rows; "
        "2 more were not tested"
    )
    (line,) = slices_sentence([compared("a", 0.0, 0.9), SMALL], "accuracy")
    assert line.endswith("; 1 more was not tested")
    assert slices_sentence([SMALL, UNDEFINED], "accuracy") == []
    assert slices_sentence([], "accuracy") == []


def test_the_table_of_slices_has_as_many_cells_in_every_row() -> None:
    for found in ([compared("a", -0.02, 0.01), SMALL, UNDEFINED], [SMALL, UNDEFINED], []):
        columns, rows = slices_table(found, "f1_macro")
        assert {len(row) for row in rows} <= {len(columns)}
    columns, rows = slices_table([compared("a", -0.02, 0.01), SMALL, UNDEFINED], "accuracy")
    assert rows[0] == (
        "label: a",
        "100",
        "80.00 % [70.00, 90.00]",
        "82.00 %",
        "-2.00 [-3.00, -1.00]",
        "0.01",
        "fails more",
    )
    assert rows[1][2:] == ("fewer than 30 rows", "", "", "", "")
    assert rows[2][-1] == "the parent's metric is undefined on these rows"


def test_gaps_of_groups() -> None:
    groups = [
        Slice("language", name, 400, interval(value, value - 0.01, value + 0.01))
        for name, value in (("en", 0.9), ("de", 0.6), ("fr", 0.88))
    ]
    columns, rows = groups_table([*groups, SMALL], "accuracy")
    assert len(columns) == 4
    assert [row[-1] == "" for row in rows] == [True, False, False, True]
    assert rows[3][2] == "too small: fewer than 30 rows"
    (line,) = groups_sentence([*groups, SMALL], "accuracy")
    assert line.startswith("groups by language: largest gap +30.00 [")
    assert line.endswith("points of accuracy, en above de; 1 group is too small to compare")
    assert groups_sentence(groups[:1], "accuracy")[0].startswith(
        "groups by language: fewer than two have 30 rows or more"
    )
    assert groups_sentence([], "accuracy") == []


def test_equal_groups_have_no_gap_that_can_be_measured() -> None:
    equal = [Slice("language", name, 400, interval(0.9, 0.88, 0.92)) for name in ("en", "de")]
    (line,) = groups_sentence(equal, "accuracy")
    assert "en above de, which is not measurable" in line


@pytest.mark.parametrize(
    ("ratio", "speedup", "said"), [(3.0, 1.0, True), (3.0, 1.2, False), (1.0, 1.0, False), (3.0, None, False)]
)
def test_a_smaller_model_that_is_no_faster_says_so(ratio: float, speedup: float | None, said: bool) -> None:
    values = {"vs_teacher/size_ratio": ratio} | ({} if speedup is None else {"vs_teacher/speedup": speedup})
    assert bool(storage_sentence(values)) is said
    assert storage_sentence({}) == []

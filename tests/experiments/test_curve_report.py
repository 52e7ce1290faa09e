"""What `--curve` says of its runs: sizes, what each run changes, the table, how many labels a student replaces."""

from __future__ import annotations

from typing import Any

import pytest
from measured_models import measured_model

from compress.errors import UserError
from compress.experiments.curve import (
    Cell,
    build_table,
    conclude,
    draw_plot,
    find_task_stages,
    fit_sizes,
    list_overrides,
    name_cell,
    parse_sizes,
)
from compress.recipe import load_recipe

FLAG = "--curve-labelled"


def cell(labelled: int, unlabelled: int, right: int | None, control: int | None = None) -> Cell:
    made = None if control is None else measured_model("control", control)
    return Cell(labelled, unlabelled, measured_model("student", right), made)


CELLS = [
    cell(100, 0, 130, control=120), cell(100, 900, 165),
    cell(300, 0, 150, control=150), cell(300, 700, 172),
    cell(1000, 0, 170, control=170),
]  # fmt: skip


def test_sizes_are_sorted_and_all_is_the_last() -> None:
    assert parse_sizes("all, 1000,100,100", FLAG, least=1) == (100, 1000, None)
    assert parse_sizes("0,10_000", FLAG, least=0) == (0, 10_000)


@pytest.mark.parametrize("text", ["", "1,,2", "0", "-1", "1.5", "many", "1e3", "9" * 20])
def test_what_is_no_number_of_rows_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match=f"{FLAG} .*separate whole numbers from 1 by commas; all stands for every row"):
        parse_sizes(text, FLAG, least=1)


def test_sizes_fit_the_rows_that_are_there() -> None:
    assert fit_sizes((100, 300, None), 250) == [100, 250]
    assert fit_sizes((0, 1000, None), 0) == [0]


def test_a_run_changes_the_numbers_of_rows_alone() -> None:
    said = {one.path: one.value for one in list_overrides([1], 1, 100, 0, control=True)}
    assert said == {"data.labelled_rows": 100, "data.unlabelled_rows": 0, "stages.1.use_unlabelled": False}
    said = {one.path: one.value for one in list_overrides([0, 1], 1, 100, 50, control=False)}
    assert said == {
        "data.labelled_rows": 100, "data.unlabelled_rows": 50, "stages.0.use_unlabelled": True,
        "stages.1.use_unlabelled": True, "stages.1.control": False,
    }  # fmt: skip
    assert name_cell(100, 50) == "100-labelled-50-unlabelled"


def test_recipes_without_a_task_step_have_no_curve() -> None:
    assert find_task_stages(load_recipe("distilbert-task")) == [0]
    assert find_task_stages(load_recipe("smoke")) == [1]
    with pytest.raises(UserError, match="no task-specific distillation"):
        find_task_stages(load_recipe("replay-distilbert"))


def test_a_line_for_each_number_of_labels_with_one_control() -> None:
    columns, rows = build_table(CELLS)
    assert columns == ("labelled rows", "control", "student, no text", "student, 700 texts", "student, 900 texts")
    assert rows[0] == (
        "100", "60.00 [56.00, 64.00]", "65.00 [61.00, 69.00]", "", "82.50 [78.50, 86.50]",
    )  # fmt: skip
    assert [row[0] for row in rows] == ["100", "300", "1,000"]


def test_how_many_labels_the_text_replaces() -> None:
    assert conclude(CELLS) == [
        "100 labels and 900 texts: 82.50, which labels alone reach between 300 and 1,000",
        "300 labels and 700 texts: 86.00, more than 1,000 labels alone",
        "one run a cell; the intervals are over rows, and do not hold the spread of seeds",
    ]
    assert conclude([cell(100, 0, 130, control=150), cell(100, 10, 140)])[0] == (
        "100 labels and 10 texts: 70.00, no more than the labels alone"
    )


def test_a_student_without_a_figure_costs_the_others_nothing() -> None:
    found = [*CELLS, cell(1000, 500, None)]
    assert build_table(found)[1][-1][3] == "undefined"
    assert len(conclude(found)) == 3


def test_the_picture_has_a_line_for_the_control_and_each_number_of_texts() -> None:
    plot = draw_plot("x", CELLS)
    assert plot is not None
    for name in ("control", "student, no text", "student, 900 texts"):
        assert f">{name}<" in plot
    unknown: Any = [cell(1, 0, None)]
    assert draw_plot("x", unknown) is None

"""What a sweep says of its runs: their names, a row each, the smallest that keeps the quality, the picture."""

from __future__ import annotations

from typing import Any

from measured_models import measured_model

from compress.experiments.sweep import Point, conclude, draw_plot, format_point_name, name_paths, table

GROUPS, SIZE = "stages.0.pattern.groups", "stages.0.embedding.size"


def point(groups: int, size: int, mb: float, kept: float | None, right: int | None = 180, **more: Any) -> Point:
    key = "fake_quantized/vs_teacher/quality_kept_pct" if more.get("simulated") else "vs_teacher/quality_kept_pct"
    values = {"vs_teacher/size_ratio": 40 / mb} | ({} if kept is None else {key: kept})
    made = measured_model("student", right, mb=mb, values=values, **more)
    return Point({GROUPS: groups, SIZE: size}, made)


def test_a_run_is_named_by_the_last_words_of_its_keys() -> None:
    assert format_point_name({GROUPS: 3, SIZE: 64}) == "groups-3_size-64"


def test_any_value_names_a_folder_of_its_own() -> None:
    objectives = [[{"kind": "soft_targets", "weight": n}] * 20 for n in (1, 2)]
    long = [format_point_name({"stages.0.objectives": one}) for one in objectives]
    assert len({*long}) == 2, "cut after the same letters, told apart all the same"
    paths = [format_point_name({"teacher": one}) for one in ("runs/a", "runs-a", "runs/é" * 60)]
    assert len({*paths}) == 3
    assert all("/" not in name and len(name.encode()) < 200 for name in (*long, *paths))


def test_a_run_prints_its_combination_beside_its_figures() -> None:
    document = point(3, 64, 8.0, 98.4).as_json()
    assert document["sweep"] == {GROUPS: 3, SIZE: 64}
    assert document["values"]["size/disk_mb"] == 8.0


def test_a_row_for_each_run() -> None:
    columns, rows = table([point(3, 64, 8.0, 98.4), point(2, 64, 5.0, None, ms=None)])
    assert columns == ("groups", "size", "accuracy x 100", "kept", "MB", "parameters", "latency p50")
    assert rows == [
        ("3", "64", "90.00 [86.00, 94.00]", "98.4 %", "8.00", "2.00 M", "5.00 ms"),
        ("2", "64", "90.00 [86.00, 94.00]", "", "5.00", "1.25 M", ""),
    ]


def test_the_smallest_that_keeps_enough_is_named() -> None:
    found = [
        point(3, 64, 8.0, 99.0), point(2, 32, 5.001, 98.0), point(2, 64, 5.002, 98.5), point(1, 64, 4.0, 97.99)
    ]  # fmt: skip
    assert conclude(found) == [
        "the smallest that keeps 98 % of the teacher's quality: groups-2_size-64, 8.00x smaller on disk"
    ]
    assert conclude(found[3:]) == ["no run kept 98 % of the teacher's quality"]


BASELINES = {"quality/majority_baseline": 0.6, "baseline/tfidf_logistic_regression": 0.88}


def test_as_in_the_verdict_of_a_comparison_a_model_at_its_baseline_is_not_named() -> None:
    """A student that keeps 98 % of a teacher barely above the baseline may be below it."""
    teacher = measured_model("teacher", 178, values=BASELINES)

    def made(groups: int, mb: float, right: int) -> Point:
        one = point(groups, 64, mb, 100 * right / 178, right, ms=5.0)
        measured = measured_model("student", right, mb=mb, values={**one.measured.measurement.values, **BASELINES})
        return Point(one.values, measured, teacher=teacher)

    above, at = made(3, 8.0, 178), made(2, 5.0, 176)
    assert at.quality_kept is not None
    assert at.quality_kept > 98
    assert conclude([above, at]) == [
        "the smallest that keeps 98 % of the teacher's quality: groups-3_size-64, 5.00x smaller on disk"
    ]
    assert conclude([at]) == [
        "the runs that kept 98 % of the teacher's quality are not better than TF-IDF + logistic regression, 88.00 %"
    ]


def test_a_teacher_at_its_baseline_is_said_beside_what_keeps_its_quality() -> None:
    teacher = measured_model("teacher", 176, values=BASELINES)
    measured = point(3, 64, 8.0, 100.0, 176).measured
    student = measured_model("student", 176, mb=8.0, values={**measured.measurement.values, **BASELINES})
    weak = "; but the teacher is not better than TF-IDF + logistic regression, 88.00 %"
    assert conclude([Point({GROUPS: 3, SIZE: 64}, student, teacher=teacher)]) == [
        f"the smallest that keeps 98 % of the teacher's quality: groups-3_size-64, 5.00x smaller on disk{weak}"
    ]
    lost = measured_model("student", 150, mb=8.0, values={**BASELINES, "vs_teacher/quality_kept_pct": 85.0})
    assert conclude([Point({GROUPS: 3, SIZE: 64}, lost, teacher=teacher)]) == [
        f"no run kept 98 % of the teacher's quality{weak}"
    ]


def test_one_run_without_a_figure_does_not_cost_the_others_their_table() -> None:
    """A student that answers all rows alike has no correlation: the sweep reports the others all the same."""
    found = [point(3, 64, 8.0, 99.0), point(2, 64, 5.0, None, right=None)]
    assert [row[2] for row in table(found)[1]] == ["90.00 [86.00, 94.00]", "undefined"]
    assert conclude(found)[0].startswith("the smallest that keeps 98 % of the teacher's quality: groups-3_size-64")
    plot = draw_plot("x", found)
    assert plot is not None
    assert "groups 3" in plot
    assert "groups 2" not in plot
    assert draw_plot("x", found[1:]) is None


def test_estimates_of_simulated_integers_are_marked() -> None:
    found = [point(3, 64, 8.0, 99.0, simulated=True)]
    assert table(found)[1][0][2:4] == ("90.00 [86.00, 94.00], simulated", "99.0 %")
    assert "groups-3_size-64" in conclude(found)[0]


def test_the_picture_has_a_line_for_each_value_of_the_first_key_by_size() -> None:
    found = [point(2, 64, 9.0, None, 180), point(1, 64, 3.0, None, 160), point(2, 32, 7.0, None, 170)]
    plot = draw_plot("share-sweep", found)
    assert plot is not None
    assert plot.count("<polyline") == 2
    assert plot.index("groups 2") < plot.index("groups 1"), "in the order of the recipe"
    two = plot[: plot.index("groups 2")]
    across = [float(pair.split(",")[0]) for pair in two.split('<polyline points="')[1].split('"')[0].split()]
    assert across == sorted(across), "a line goes from small to large"


def test_several_seeds_are_one_row_of_means_with_an_interval_over_seeds() -> None:
    runs = [point(3, 64, 8.0, kept, right, ms=ms) for kept, right, ms in ((99.0, 180, 4.0), (97.0, 176, 6.0))]
    one = Point(runs[0].values, runs[0].measured, [p.measured for p in runs])
    columns, rows = table([one])
    assert columns[2:4] == ("accuracy x 100", "sd")
    # Student's t of one degree of freedom: 12.706 x 1.414 / 1.414
    assert rows == [("3", "64", "89.00 [76.29, 101.71]", "1.41", "98.0 %", "8.00", "2.00 M", "5.00 ms")]
    assert conclude([one])[0] == "means of 2 seeds; the intervals of the metric are over seeds"
    assert "groups-3_size-64" in conclude([one])[1]
    assert len(one.as_json()["runs"]) == 2
    undefined = Point(one.values, one.measured, [runs[0].measured, point(3, 64, 8.0, None, None).measured])
    assert table([undefined])[1][0][2:5] == ("undefined", "", "")


def test_columns_tell_equal_words_apart() -> None:
    assert name_paths(["stages.0.rate", "stages.1.rate", "seed"]) == ["stages.0.rate", "stages.1.rate", "seed"]

"""Plots: whole XML, what it shows stands where the numbers say, in any script."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.errors import columns, printable
from compress.report.plots import (
    BETTER,
    CHARACTER,
    DASH,
    HEIGHT,
    WHOLE,
    WIDTH,
    WORSE,
    Level,
    line_chart,
    waterfall_chart,
)

NAME = "{http://www.w3.org/2000/svg}"
CURVES = {"模型 <一>": [(0, 90, 88, 92), (20, 70.5, 66, 75)], "teacher & co": [(0, 95, 94, 96), (20, 60, 55, 65)]}


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ET.fromstring(svg).iter(f"{NAME}text")]


def test_names_in_any_script_and_with_markup_are_shown_as_they_are() -> None:
    svg = line_chart("准确率 under typos", "mistyped, %", "accuracy, %", CURVES)
    shown = texts(svg)
    assert {"准确率 under typos", "模型 <一>", "teacher & co", "mistyped, %", "accuracy, %"} <= set(shown)
    assert "sans-serif" in svg
    assert "Noto Sans CJK SC" in svg


def test_points_stand_where_the_numbers_say() -> None:
    root = ET.fromstring(line_chart("t", "x", "y", {"a": [(0, 1, 1, 1), (10, 2, 2, 2), (20, 3, 3, 3)]}))
    places = [(float(n.attrib["cx"]), float(n.attrib["cy"])) for n in root.iter(f"{NAME}circle")]
    (x0, y0), (x1, y1), (x2, y2) = places
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 > y2, "larger is higher"
    ticks = [float(t) for t in texts(ET.tostring(root, encoding="unicode")) if t.replace(".", "").isdigit()]
    assert {0.0, 20.0, 1.0, 3.0} <= set(ticks)


def test_the_legend_stands_below_the_frame_and_no_entry_covers_another() -> None:
    names = ["perfect calibration", "teacher", "a student with a rather long name", "x" * 60, "control", "目" * 30]
    root = ET.fromstring(line_chart("t", "x", "y", {name: [(0, 1, 1, 1), (10, 2, 2, 2)] for name in names}))
    shown = {printable(name, 40) for name in names}
    boxes = [
        (float(n.attrib["x"]) - DASH - 6, float(n.attrib["y"]), float(n.attrib["x"]) + CHARACTER * columns(n.text))
        for n in root.iter(f"{NAME}text")
        if n.text in shown
    ]
    assert len(boxes) == len(names)
    dots = max(float(n.attrib["cy"]) for n in root.iter(f"{NAME}circle"))
    assert all(y - 12 > max(dots, HEIGHT - 10) for _, y, _ in boxes), "below the frame and the axis label"
    assert all(left >= 0 and right <= WIDTH and y <= float(root.attrib["height"]) for left, y, right in boxes)
    for (_, y, right), (left, below, _) in itertools.pairwise(boxes):
        assert (below == y and left > right) or below >= y + 14


number = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(number, number), min_size=1, max_size=6), st.text(max_size=60))
def test_any_curve_stays_in_the_frame(points: list[tuple[float, float]], name: str) -> None:
    curve = [(x, y, y - 1, y + 1) for x, y in sorted(points)]
    root = ET.fromstring(line_chart(name, name, name, {name: curve}))
    for node in root.iter(f"{NAME}circle"):
        assert 0 <= float(node.attrib["cx"]) <= WIDTH
        assert 0 <= float(node.attrib["cy"]) <= HEIGHT


@pytest.mark.parametrize("curves", [{}, {"a": []}, {"a": [(0, float("nan"), 0, 1)]}])
def test_nothing_to_draw(curves) -> None:
    with pytest.raises(ValueError, match="finite"):
        line_chart("t", "x", "y", curves)


def test_a_waterfall_shows_each_step_between_two_whole_bars() -> None:
    panels = {
        "accuracy": [Level(90.0, 88.0, 92.0), Level(87.0, 85.0, 89.0), Level(87.0, 85.0, 89.0)],
        "MB": [Level(90.0), Level(50.0), Level(60.0)],
        "ms": [Level(8.0), None, Level(2.0)],
    }
    svg = waterfall_chart("<tiny> & small", ["teacher", "0-distill", "1-quantize"], panels, {"accuracy"})
    assert {"<tiny> & small", "-3", "+0", "-40", "+10", "-6", "total"} <= {*texts(svg)}
    assert svg.count(BETTER) == 2, "fewer MB, fewer ms"
    assert svg.count(WORSE) == 2, "less accurate, more MB"
    assert svg.count(WHOLE) == 7, "both ends of each panel, and the step that changed nothing"


@given(st.lists(st.floats(80, 100), min_size=2, max_size=5), st.floats(0, 3))
def test_no_text_of_a_waterfall_covers_another(values: list[float], half: float) -> None:
    names = [f"{number}-prune_vocab" for number in range(len(values))]
    panels = {
        "accuracy x 100": [Level(value, value - half, value + half) for value in values],
        "MB on disk": [Level(value) for value in values],
        "latency p50, ms": [Level(100 - value) for value in values],
    }
    root = ET.fromstring(waterfall_chart("a chain", names, panels, {"accuracy x 100"}))
    boxes = []
    for text in root.iter(f"{NAME}text"):
        x, y, width = float(text.attrib["x"]), float(text.attrib["y"]), 7 * len(text.text or "")
        left = {"start": x, "middle": x - width / 2, "end": x - width}[text.attrib["text-anchor"]]
        boxes.append((left, y - 9, left + width, y, text.text))
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one[4], other[4])


def test_a_waterfall_of_nothing_measured_says_so_and_bad_levels_are_refused() -> None:
    assert "not measured" in texts(waterfall_chart("x", ["a"], {"ms": [None]}))
    for names, levels in ((["a", "b"], [Level(1.0)]), (["a"], [Level(float("nan"))]), ([], [])):
        with pytest.raises(ValueError, match="needs"):
            waterfall_chart("x", names, {"ms": levels})

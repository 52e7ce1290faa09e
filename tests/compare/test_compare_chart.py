"""The trade-off chart: colours by method, points where the figures say, names that cover nothing."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import pytest
from compare_rows import row

from compress.compare import chart
from compress.compare.chart import NARROW, WIDE, Shape, drawable, method, methods, spoken, trade_off
from compress.compare.frontier import RankedRow, rank_rows
from compress.report.plots import COLOURS

Box = tuple[float, float, float, float]


def judged(*rows: object) -> list[RankedRow]:
    return rank_rows(rows)[0]  # type: ignore[arg-type]


def test_what_has_no_latency_or_quality_is_not_drawn() -> None:
    found = drawable(judged(row("whole"), row("untimed", ms=None), row("unscored", right=None)))
    assert [j.row.name for j in found] == ["whole"]


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"role": "teacher"}, "teacher"),
        ({"role": "teacher-2"}, "teacher"),
        ({"role": "control"}, "control"),
        ({"role": "student", "method": "quantize"}, "quantize"),
        ({"role": "start", "method": ""}, "start"),
        ({"method": ""}, "model"),
    ],
)
def test_the_method_of_a_row(facts: dict[str, str], shown: str) -> None:
    (one,) = judged(row("a", facts=facts))
    assert method(one) == shown


def test_frequent_methods_have_colours_of_their_own_and_the_rest_is_grey() -> None:
    names = ["share", "prune", "prune", *(f"m{number}" for number in range(6))]
    colours = methods(judged(*(row(str(n), facts={"method": name}) for n, name in enumerate(names))))
    assert list(colours)[:2] == ["prune", "m0"]
    assert [colours[name] for name in colours][: len(COLOURS)] == list(COLOURS)
    assert set(list(colours.values())[len(COLOURS) :]) == {"#767676"}


def test_a_row_is_spoken_with_its_figures_and_its_place() -> None:
    teacher, worse = judged(row("teacher", 190, 10.0, 5.0), row("worse", 120, 20.0, 9.0))
    said = spoken(teacher)
    assert said.startswith("teacher: ")
    assert "5.00 ms, 10.00 MB; on the Pareto frontier; recipe small, distill, layers 3" in said
    assert "9.00 ms, 20.00 MB; dominated by teacher" in spoken(worse)


def drawn(rows: list[RankedRow], shape: Shape) -> ET.Element:
    heaviest = max(j.row.values["size/disk_mb"] for j in rows)
    anchors = [f"row-{number}" for number in range(len(rows))]
    return ET.fromstring(trade_off(rows, anchors, shape, methods(rows), heaviest))


def circles(root: ET.Element) -> list[tuple[float, float, float]]:
    return [(float(c.attrib["cx"]), float(c.attrib["cy"]), float(c.attrib["r"])) for c in root.iter("circle")]


def test_faster_is_left_better_is_up_and_heavier_is_larger() -> None:
    rows = judged(row("teacher", 190, 90.0, 20.0), row("student", 170, 10.0, 5.0))
    (x0, y0, r0), (x1, y1, r1) = circles(drawn(rows, WIDE))
    assert x1 < x0
    assert y0 < y1, "y grows downwards"
    assert r0 == pytest.approx(3 * r1, rel=0.05), "the area is the size"


def names(root: ET.Element, shape: Shape) -> dict[str, Box]:
    found = {}
    for text in root.iter("text"):
        if text.attrib.get("class") == "name":
            left, base = float(text.attrib["x"]), float(text.attrib["y"])
            found[text.text or ""] = (left, base - 11, left + chart.CHARACTER * len(text.text or ""), base + 3)
    return found


@pytest.mark.parametrize("shape", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_name_covers_another_or_leaves_the_frame(shape: Shape) -> None:
    crowd = [row(f"a model called {n}", 150 + 4 * n, 10.0 + 4 * n, 3.0 + 0.4 * n) for n in range(10)]
    root = drawn(judged(*crowd), shape)
    boxes = names(root, shape)
    assert boxes, "some are shown"
    for one, other in itertools.combinations(boxes.values(), 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    assert all(left >= 0 and right <= shape.width and top >= 0 and low <= shape.height for left, top, right, low in
               boxes.values())  # fmt: skip


def test_a_name_that_fits_nowhere_is_left_out_but_can_be_read_on_hover() -> None:
    same = [row(f"twin {n}", 180, 10.0, 5.0) for n in range(12)]
    root = drawn(judged(*same), NARROW)
    assert len(names(root, NARROW)) < len(same)
    assert len(list(root.iter("title"))) == len(same)

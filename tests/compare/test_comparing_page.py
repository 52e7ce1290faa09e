"""The page: one file without a network, whole without a script, and used with the keyboard, on a phone, on paper."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from compare_rows import row

sys.path.insert(0, str(Path(__file__).parents[1] / "tracking"))
import chromium

from compress.compare.frontier import rank_rows
from compress.compare.page import Detail, Picture, page
from compress.compare.table import columns
from compress.report.plots import heatmap
from evaluation.quality.draws import of_mean
from evaluation.quality.slices import Answers, by_value, slices

HOSTILE = "</script><img src=http://example.invalid/x onerror=alert(1)>"
ROWS = [
    row("teacher", 190, 90.0, 20.0, facts={"role": "teacher"}),
    row("student", 186, 40.0, 9.0),
    row("worse", 150, 60.0, 15.0),
    row(HOSTILE, 170, 12.0, 4.0),
    row("unmeasured", None, 30.0, None),
]


def made() -> str:
    random = np.random.default_rng(0)
    group, theirs = np.repeat(["a", "b"], 100), random.random(200) < 0.95
    ours = theirs & ~((group == "a") & (random.random(200) < 0.4))
    found = slices(by_value("kind", group), Answers(of_mean(ours), ours), Answers(of_mean(theirs), theirs))
    churn = (("predictions that differ", "rows", "changed"), [("all rows", "1,000", "3"), ("short", "20", "1")])
    drawn = heatmap("layers", ["0", "1"], ["0", "1"], [[1.0, 0.5], [0.5, 1.0]])
    groups = slices(by_value("country", group), Answers(of_mean(ours), ours))
    details = [Detail("student", [Picture("Similarity of layers", drawn)], churn, found, "accuracy", groups)]
    judged, notes = rank_rows(ROWS)
    return page("5 models compared", judged, columns(ROWS, []), notes, details)


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    handle_startendtag = handle_starttag  # type: ignore[assignment]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]


@pytest.fixture(scope="module")
def elements() -> Elements:
    read = Elements()
    read.feed(made())
    return read


def test_nothing_comes_from_elsewhere(elements: Elements) -> None:
    assert not elements.all("link")
    assert [attrs for attrs in elements.all("script") if "src" in attrs] == []
    assert all((attrs["src"] or "").startswith("data:image/svg+xml;base64,") for attrs in elements.all("img"))
    (policy,) = [a["content"] for a in elements.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert len(elements.all("script")) == 1, "no name becomes markup"


def test_heads_sort_and_pictures_are_told(elements: Elements) -> None:
    heads = elements.all("th")
    assert heads
    assert all(attrs["aria-sort"] == "none" and attrs["scope"] == "col" for attrs in heads)
    assert len(elements.all("button")) == len(heads)
    assert all(attrs["alt"] for attrs in elements.all("img"))
    assert [attrs["content"] for attrs in elements.all("meta") if attrs.get("name") == "viewport"]


def test_every_drawn_row_is_a_point_in_both_drawings_and_says_its_recipe(elements: Elements) -> None:
    points = [attrs for attrs in elements.all("a") if "point" in (attrs.get("class") or "")]
    assert len(points) == 2 * 4
    label = next(attrs["aria-label"] for attrs in points if (attrs["aria-label"] or "").startswith("student"))
    assert label is not None
    assert "93.00 % [" in label
    assert label.endswith("9.00 ms, 40.00 MB; on the Pareto frontier; recipe small, distill, layers 3")
    rows = {attrs.get("id") for attrs in elements.all("tr")}
    assert {(attrs["href"] or "").removeprefix("#") for attrs in points} <= rows


def test_a_row_without_a_figure_is_named_and_not_drawn() -> None:
    assert "Not drawn because a figure is missing: unmeasured" in made()


def test_groups_of_a_column_are_shown_with_how_far_they_are_behind() -> None:
    text = made().partition('<section id="groups">')[2].partition("</section>")[0]
    assert "groups by country: largest gap" in text
    assert "b above a" in text
    assert "country: a" in text
    assert "behind the best group, points" in text
    assert '<tr role="row" class="worse">' in text, "the gap is measurable"
    assert "hold for all pairs of groups" in text
    assert '<a href="#groups">Groups</a>' in made()


@pytest.mark.browser
@pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed")
def test_in_a_browser(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(made(), encoding="utf-8")
    with chromium.browsing(tmp_path / "profile") as browser:
        browser.open(file.as_uri())
        browser.wait_for("document.readyState == 'complete'")
        names = "[...document.querySelector('#table tbody').rows].map(r => r.cells[1].textContent.slice(0, 7)).join()"
        assert browser.evaluate(names).startswith("teacher,student")
        head = "document.querySelectorAll('#table th')[3]"
        browser.evaluate(f"{head}.querySelector('button').click()")
        assert browser.evaluate(f"{head}.getAttribute('aria-sort')") == "ascending"
        assert browser.evaluate(names).endswith("teacher"), "the smallest first"
        browser.evaluate(f"{head}.querySelector('button').click()")
        assert browser.evaluate(f"{head}.getAttribute('aria-sort')") == "descending"
        assert browser.evaluate(names).startswith("teacher,worse")

        browser.evaluate("document.querySelector('svg.wide a[aria-label^=student]').focus()")
        assert browser.evaluate("document.getElementById('said').textContent").startswith("student: 93.00 %")
        assert browser.evaluate("document.querySelectorAll('tr.picked').length") == 1

        wide = "getComputedStyle(document.querySelector('svg.wide')).display"
        assert browser.evaluate(wide) == "block"
        for width in (390, 760, 1280):
            browser.resize(width, 844)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width, f"{width} pixels are enough"
        browser.resize(390, 844)
        assert browser.evaluate(wide) == "none"

        paper = "getComputedStyle(document.body).backgroundColor"
        browser.prefer(dark=True)
        assert browser.evaluate(paper) == "rgb(20, 23, 27)"
        browser.prefer(dark=True, paper=True)
        assert browser.evaluate(paper) == "rgb(255, 255, 255)"
        assert {a.split(":")[0] for a in browser.addresses} <= {"file", "data"}, "no network"

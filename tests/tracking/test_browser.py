"""The page as a person sees it: our link opens on our runs, with quality against latency and megabytes."""

from __future__ import annotations

from pathlib import Path

import chromium
import pytest
from toy_runs import log_toy_runs

from compress.tracking import Store, deep_link
from compress.tracking.listing import find_page
from compress.tracking.server import run_server

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed"),
]

CHARTS = (
    "speed/latency_p50_ms vs. quality/accuracy",
    "size/disk_mb vs. quality/accuracy",
    "Parallel Coordinates",
)
CURVES = ("train/loss", "val/accuracy")
SECTIONS = ("Trade-offs", "All at once", "Size and speed", "Training curves")
_INTO_SIGHT = "[...document.querySelectorAll('*')].findLast(e => e.textContent == 'Training curves').scrollIntoView()"


@pytest.mark.thorough
def test_the_link_opens_on_our_runs_and_charts(store: Store, tmp_path: Path) -> None:
    log_toy_runs(tmp_path / "runs", store, "opinions", rows=2)
    page = find_page(store)
    assert page is not None
    with (
        run_server(store, "127.0.0.1", None) as server,
        chromium.browsing(tmp_path / "profile") as browser,
    ):
        browser.open(deep_link(server.address, None, page.experiment_id, page.view))
        browser.wait_for("document.querySelectorAll('.js-plotly-plot .trace.scatter .point').length >= 4", 90)
        browser.screenshot(tmp_path / "page.png")
        text = browser.text()
        for title in CURVES:  # a chart is drawn while it is in sight
            browser.evaluate(_INTO_SIGHT)
            browser.wait_for(f"document.body.innerText.includes('{title}')", 30)

    for name in ("teacher-12-layers", "student-6-layers"):
        assert name in text
    for title in (*SECTIONS, *CHARTS):
        assert title in text
    assert "Quality, size, latency" in text, "the saved view is the one that is open"
    outside = {a for a in browser.addresses if a.startswith("http") and not a.startswith(server.address)}
    assert not outside, "the page asks nothing of the network"

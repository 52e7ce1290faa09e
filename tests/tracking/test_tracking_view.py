"""The saved view, the deep link and the lines that lead to the page."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pytest

from compress.tracking import Store, deep_link, ui_lines, view


def _charts(quality: str, kind: str) -> list[dict]:
    return [c for c in view.page_state(quality)["compareRunCharts"] if c["type"] == kind]


def test_the_view_shows_quality_against_latency_and_size() -> None:
    axes = [(c["xaxis"]["key"], c["yaxis"]["key"]) for c in _charts("quality/f1", "SCATTER")]
    assert axes == [("speed/latency_p50_ms", "quality/f1"), ("size/disk_mb", "quality/f1")]


def test_the_view_has_bars_curves_and_parallel_coordinates() -> None:
    bars = [c["metricKey"] for c in _charts("quality/accuracy", "BAR")]
    assert bars[:3] == ["quality/accuracy", "size/disk_mb", "speed/latency_p50_ms"]
    assert {"vs_teacher/quality_kept_pct", "vs_teacher/size_ratio", "vs_teacher/speedup"} <= set(bars)
    assert [c["metricKey"] for c in _charts("quality/accuracy", "LINE")] == ["train/loss", "val/accuracy"]
    (parallel,) = _charts("quality/accuracy", "PARALLEL")
    assert parallel["selectedMetrics"] == [
        "size/params_m",
        "size/disk_mb",
        "speed/latency_p50_ms",
        "quality/accuracy",
    ]


def test_every_chart_is_in_a_section() -> None:
    state = view.page_state()
    sections = {s["uuid"] for s in state["compareRunSections"]}
    assert {c["metricSectionId"] for c in state["compareRunCharts"]} == sections
    assert len({c["uuid"] for c in state["compareRunCharts"]}) == len(state["compareRunCharts"])


def test_the_tag_can_be_read_back_and_fits() -> None:
    tag = view.view_tag(view.view_state())
    packed = json.loads(tag)["state"]
    assert packed.startswith("deflate;")
    assert json.loads(zlib.decompress(base64.b64decode(packed[len("deflate;") :]))) == view.page_state()
    assert len(tag) < 5000 < 20_000  # mlflow's limit of an experiment's tag


@pytest.mark.parametrize(
    ("host", "port", "begin"),
    [
        ("127.0.0.1", 5000, "http://127.0.0.1:5000/#/experiments/7/runs?"),
        ("::1", 5000, "http://[::1]:5000/#/experiments/7/runs?"),
        ("https://runs.example.org/", None, "https://runs.example.org/#/experiments/7/runs?"),
    ],
)
def test_deep_link(host: str, port: int | None, begin: str) -> None:
    link = deep_link(host, port, "7")
    assert link.startswith(begin)
    assert link.endswith("workflowType=machine_learning&viewStateShareKey=compress-accuracy&compareRunsMode=CHART")


def test_ui_lines_name_the_store_exactly(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/my runs/mlflow.db")
    ours, theirs = ui_lines(store, "toy task")
    assert ours == "compress ui --experiment 'toy task'"
    assert theirs == f"mlflow ui --backend-store-uri 'sqlite:///{tmp_path}/my runs/mlflow.db'"


def test_ui_lines_hide_passwords() -> None:
    for line in ui_lines(Store("postgresql://me:canary@db/x"), "toy") + ui_lines(Store("http://me:canary@h"), "toy"):
        assert "canary" not in line

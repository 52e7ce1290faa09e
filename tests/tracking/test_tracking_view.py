"""The saved view, the deep link and the lines that lead to the page."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from pathlib import Path

import pytest
from tracking_tools import Opener, Seen

from compress.cli.main import main
from compress.errors import UserError
from compress.tracking import Store, deep_link, ui_lines, view
from compress.tracking.families import MOST, find_view
from compress.tracking.listing import find_page


def _charts(quality: str, kind: str) -> list[dict]:
    return [c for c in view.page_state(quality)["compareRunCharts"] if c["type"] == kind]


def test_the_view_shows_quality_against_latency_and_size() -> None:
    axes = [(c["xaxis"]["key"], c["yaxis"]["key"]) for c in _charts("quality/f1", "SCATTER")]
    assert axes == [("speed/latency_p50_ms", "quality/f1"), ("size/disk_mb", "quality/f1")]


def test_the_view_has_bars_curves_and_parallel_coordinates() -> None:
    bars = {c["metricKey"]: c["displayName"] for c in _charts("quality/accuracy", "BAR")}
    assert bars["size/disk_mb"] == "size on disk, MB"
    assert {"speed/latency_p50_ms", "vs_teacher/size_ratio", "vs_teacher/speedup"} <= set(bars)
    assert not any("quality" in key or "agreement" in key for key in bars), "bars begin at 0"
    assert [c["metricKey"] for c in _charts("quality/accuracy", "LINE")] == ["train/loss", "val/accuracy"]
    (parallel,) = _charts("quality/accuracy", "PARALLEL")
    assert parallel["selectedMetrics"] == [
        "size/params_m",
        "size/disk_mb",
        "speed/latency_p50_ms",
        "quality/accuracy",
    ]


def test_a_figure_that_a_run_lacks_has_no_card() -> None:
    search = "tags.deployable = 'yes'"
    state = view.page_state("quality/f1", search=search, known={"quality/f1", view.SIZE}, nested=False)
    cards = [(c["type"], c.get("metricKey") or c["xaxis"]["key"]) for c in state["compareRunCharts"]
             if c["type"] in ("SCATTER", "BAR")]  # fmt: skip
    assert cards == [("SCATTER", view.SIZE), ("BAR", view.SIZE)], "the legend would name runs without a dot"
    assert state["searchFilter"] == search
    assert state["orderByKey"] == "metrics.`quality/f1`"
    assert view.page_state()["orderByKey"] == "attributes.start_time", "in which the page nests runs"


def test_a_view_that_is_there_stays_as_a_run_begins(opened: Opener, seen: Seen) -> None:
    opened("one").finish()
    found = seen.client.get_experiment_by_name("toy")
    assert found is not None
    tag = view.TAG + view.view_key()
    assert tag in found.tags
    seen.client.set_experiment_tag(found.experiment_id, tag, "of the models")
    opened("two").finish()
    assert seen.client.get_experiment(found.experiment_id).tags[tag] == "of the models"


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


def _family(opened: Opener) -> None:
    """A chain with a stage, and a contest with two cuts, one of which has a stage."""
    chain = opened("chain")
    opened("chain-stage", parent=chain.parent, role="stage").finish()
    contest = opened("contest", role="summary")
    for place, criterion in enumerate(("cka", "taylor")):
        cut = opened(f"cut-{place}", parent=contest.parent, tags={"compress.criteria": criterion})
        cut.tags({"measured.metric": "f1"})
        if place == 0:
            opened("cut-stage", parent=cut.parent, role="stage").finish()
        cut.finish()
    contest.finish()
    chain.finish()


def _state(seen: Seen, key: str | None) -> tuple[str, dict]:
    """(name, state) of the saved view as the page reads it."""
    tag = json.loads(seen.client.get_experiment_by_name("toy").tags[f"{view.TAG}{key}"])  # pyright: ignore
    return tag["name"], json.loads(zlib.decompress(base64.b64decode(tag["state"].removeprefix("deflate;"))))


def _shown(seen: Seen, state: dict) -> set[str]:
    """Names of the runs that the view's search finds."""
    number = seen.client.get_experiment_by_name("toy").experiment_id  # pyright: ignore
    return {str(r.info.run_name) for r in seen.client.search_runs([number], state["searchFilter"])}


@pytest.mark.thorough
def test_views_of_a_lineage_and_of_a_contest(
    opened: Opener, store: Store, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    _family(opened)
    before = find_page(store)
    for asked, runs in (
        ("chain", {"chain", "chain-stage"}),
        ("chain-stage", {"chain", "chain-stage"}),
        ("cut-stage", {"cut-0", "cut-stage"}),  # a contest is several models
    ):
        page = find_view(store, "lineage", asked)
        assert page is not None
        assert not page.charts
        assert _shown(seen, _state(seen, page.view)[1]) == runs
    for asked in (None, "contest", "cut-1", "cut-stage"):
        page = find_view(store, "criteria", asked, "toy")
        assert page is not None
        name, state = _state(seen, page.view)
        assert name == "Contest contest"
        assert _shown(seen, state) == {"cut-0", "cut-1"}
        assert {"tags.`compress.criteria`", "params.`student.layers`", "params.`seed`"} <= set(state["selectedColumns"])
        assert state["orderByKey"] == "metrics.`quality/f1`"
    assert find_page(store) == before == find_view(store, "tradeoffs"), "the experiment opens as before"

    with pytest.raises(UserError) as caught:
        find_view(store, "criteria", "chain-stage")
    assert (
        "run chain-stage: it is not a criterion comparison with recovery training, nor a run of one"
        in caught.value.line()
    )
    with pytest.raises(UserError, match="did you mean 'chain'"):
        find_view(store, "lineage", "chian")
    assert main(["ui", "--run", "chain", "--tracking-uri", store.uri]) == 2
    assert (
        "--run: only applies to the view of one run; add --view lineage, or --view criteria" in capsys.readouterr().err
    )


def test_views_of_a_store_without_runs(store: Store) -> None:
    assert find_view(store, "lineage") is None
    assert find_view(store, "criteria") is None


def test_a_lineage_of_the_most_runs_fits_in_a_tag() -> None:
    ids = [hashlib.sha256(str(n).encode()).hexdigest()[:32] for n in range(MOST)]
    assert len(view.view_tag(view.pack_state(view.lineage_state("quality/accuracy", ids)))) < 20_000


def test_a_view_can_open_on_its_table() -> None:
    assert deep_link("h", 1, "7", "lineage-0", charts=False).endswith("&viewStateShareKey=lineage-0")

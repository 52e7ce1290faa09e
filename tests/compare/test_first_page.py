"""What the first page of an experiment shows: which runs, and which verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from compress.compare.firstpage import build, renew
from compress.tracking import Store
from compress.tracking.firstpage import END, HEADING, replace_verdict, write_page
from compress.tracking.reading import StoredRun
from compress.tracking.view import TAG, SavedView, newest_view
from evaluation.quality.pairing import ResampledMetric

CONTEXT = {
    "device": "a processor", "threads": "1", "runtime": "torch, packed", "latency_shape": "batch 1 x 128 tokens",
    "dataset": "opinions/test", "dataset_digest": "abc", "rows": "200", "metric": "accuracy",
}  # fmt: skip


def nothing(shown: Sequence[StoredRun]) -> dict[str, ResampledMetric]:
    """No run left its quality on resamples."""
    return {}


def run(
    name: str,
    role: str = "student",
    *,
    accuracy: float | None = 0.9,
    mb: float = 10.0,
    ms: float | None = 5.0,
    started: int = 0,
    above: str = "",
    model: str | None = None,
    metric: str = "accuracy",
    **tags: str,
) -> StoredRun:
    values = {} if accuracy is None else {f"quality/{metric}": accuracy, "size/disk_mb": mb}
    if accuracy is not None:
        values |= {f"quality/{metric}_low": accuracy - 0.04, f"quality/{metric}_high": accuracy + 0.04}
    if ms is not None and accuracy is not None:
        values["speed/latency_p50_ms"] = ms
    said = {f"measured.{key}": value for key, value in (CONTEXT | {"metric": metric}).items()}
    said |= {"compress.role": role, "mlflow.parentRunId": above, "compress.fingerprint": model or name, **tags}
    return StoredRun(name, name, "toy", started, "", values, {"method": "distill"}, said)


TEACHER = run("teacher", "teacher", mb=40.0, ms=10.0)
CHAIN = run("chain", mb=8.0, ms=2.0)
RUNS = [
    CHAIN,
    run("chain/0-distill", "stage", above="chain", mb=20.0),
    run("chain/1-quantize", "stage", above="chain", mb=8.0, model="chain"),
    run("chain/control", "control", above="chain"),
    run("chain/reference", "teacher", above="chain", mb=40.0, model="teacher"),
    run("tiny", accuracy=0.6, mb=1.0, ms=1.0),
    run("training", accuracy=None),
    run("comparison", "comparison"),
    TEACHER,
]


def test_each_model_is_one_row_and_a_chain_holds_its_stages() -> None:
    page = build(RUNS, nothing)
    shown = {name: tags["deployable"] for name, tags in page.tags.items()}
    assert {name for name, said in shown.items() if said == "yes"} == {"chain", "tiny", "teacher"}
    assert {name for name, said in shown.items() if said == "stage"} == {"chain/0-distill", "chain/1-quantize"}
    assert page.tags["chain"]["pareto"] == page.tags["tiny"]["pareto"] == "yes"
    assert page.tags["teacher"]["pareto"] == "maybe: chain", "these intervals are not paired"
    assert page.tags["chain/control"]["pareto"] == "—"
    (view,) = page.views
    state = view.state
    assert state["searchFilter"] == "tags.deployable != 'no'"
    assert state["orderByKey"] == "attributes.start_time", "else the page does not nest the stages"
    axes = [card["xaxis"]["key"] for card in state["compareRunCharts"] if card["type"] == "SCATTER"]
    assert axes == ["speed/latency_p50_ms", "size/disk_mb"]
    bars = {card["metricKey"] for card in state["compareRunCharts"] if card["type"] == "BAR"}
    assert bars == {"speed/latency_p50_ms", "size/disk_mb"}, "the others would have names without a bar"


def test_the_verdict_is_a_table_with_a_reason_for_each_model() -> None:
    lines = build(RUNS, nothing).verdict.splitlines()
    assert lines[-1] == END
    assert lines[0] == f"{HEADING}: ship chain: 5.0x smaller, 5.0x faster, no measurable loss"
    assert lines[2].startswith("**ship chain: 5.0x smaller, 5.0x faster, no measurable loss")
    table = [line.split(" | ") for line in lines if line.startswith("| ")]
    assert table[0] == ["| model", "accuracy", "MB", "p50, ms", "Pareto", "verdict |"]
    assert [row[0] for row in table[1:]] == ["| chain", "| tiny", "| teacher"]
    assert table[1][-1] == "ship |"
    assert table[2][-1].startswith("a measurable loss (-30.0 [")
    assert table[3][-1] == "the reference, 5.0x larger and 5.0x slower |"


def test_a_parent_that_no_run_made_is_the_reference_but_no_row() -> None:
    page = build(
        [CHAIN, run("chain/reference", "teacher", above="chain", mb=40.0, **{"compress.model": "mine"})], nothing
    )
    assert page.tags["chain/reference"]["deployable"] == "no"
    assert "against mine" in page.verdict
    assert "| mine |" in page.verdict


def test_of_several_runs_of_a_model_the_one_with_a_latency_is_shown() -> None:
    runs = [
        run("busy", model="m", ms=None, started=3),
        run("timed", model="m", started=2),
        run("old", model="m", started=1),
        run("promoted m", model="m", started=4, **{"compress.flavour": "pyfunc"}),
        run("m", model="as another version counts", started=5, **{"compress.promoted": "yes"}),
    ]
    page = build(runs, nothing)
    assert [name for name, tags in page.tags.items() if tags["deployable"] == "yes"] == ["timed"]
    assert "nothing to compare yet" in page.verdict


def test_runs_below_a_summary_are_models_in_a_flat_table() -> None:
    runs = [run("seeds", "summary"), run("seed 0", above="seeds"), run("seed 1", above="seeds", ms=None)]
    page = build(runs, nothing)
    assert [tags["deployable"] for tags in page.tags.values()] == ["no", "yes", "yes"]
    (view,) = page.views
    state = view.state
    assert state["searchFilter"] == "tags.deployable = 'yes'", "a nested table would hide them in the summary's row"
    assert state["orderByKey"] == "metrics.`quality/accuracy`"
    axes = [card["xaxis"]["key"] for card in state["compareRunCharts"] if card["type"] == "SCATTER"]
    assert axes == ["size/disk_mb"], "one of them has no latency: its name would stand in the legend without a dot"


def test_tasks_have_views_of_their_own() -> None:
    page = build([run("tags", metric="f1"), TEACHER, run("without figures", accuracy=None)], nothing)
    accuracy, f1 = page.views
    assert accuracy.key == "compress-accuracy"
    assert f1.key == "compress-f1", "that of the newest run is written last, and opens"
    assert f1.state["searchFilter"] == "tags.deployable != 'no' AND tags.`measured.metric` = 'f1'"
    assert [accuracy.name, f1.name] == [f"Quality, size, latency: {name}" for name in ("accuracy", "F1")]


def test_data_sets_have_views_of_their_own() -> None:
    reviews: Any = {"measured.dataset": "reviews.csv/test", "measured.dataset_digest": "d"}
    page = build([run("newest", **reviews), TEACHER, run("older", **reviews)], nothing)
    opinions, newest = page.views
    assert opinions.key.startswith("compress-accuracy-opinions-test")
    assert opinions.name == "Quality, size, latency: opinions/test"
    assert opinions.state["searchFilter"] == "tags.deployable != 'no' AND tags.`measured.dataset` = 'opinions/test'"
    assert newest.key == "compress-accuracy"
    assert newest.state["searchFilter"].endswith("tags.`measured.dataset` = 'reviews.csv/test'")


def test_a_view_stays_that_of_its_data_set() -> None:
    reviews: Any = {"measured.dataset": "reviews.csv/test", "measured.dataset_digest": "d"}
    runs: list[StoredRun] = []
    keys = []
    for one in (TEACHER, run("second", **reviews), run("third"), replace(TEACHER, run_id="teacher again")):
        runs.insert(0, one)  # the newest first
        keys.append({view.name: view.key for view in build(runs, nothing).views})
    (alone,) = keys[0].values()
    assert alone == keys[1]["Quality, size, latency: opinions/test"] == "compress-accuracy"
    assert keys[1] == keys[2] == keys[3]
    assert list(keys[1])[-1].endswith("reviews.csv/test"), "the newest last"
    assert list(keys[2])[-1].endswith("opinions/test")


class FakeClient:
    """An experiment's tags; a clock of its own, so that each tag is newer than the one before."""

    tracking_uri = "sqlite:///x"

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.written: list[str] = []
        self.now = 0

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="1", tags=dict(self.tags))

    def set_experiment_tag(self, number: str, key: str, value: str) -> None:
        if key.startswith(TAG):
            self.written.append(key.removeprefix(TAG))
            self.now += 1
            value = json.dumps(json.loads(value) | {"createdAt": self.now})
        self.tags[key] = value


def test_the_view_of_the_newest_model_opens_and_nothing_is_written_twice() -> None:
    client: Any = FakeClient()

    def written(*views: SavedView) -> list[str]:
        client.written.clear()
        write_page(client, "toy", [], {}, views, HEADING)
        return list(client.written)

    a, b = SavedView("compress-a", "A", {"x": 1}), SavedView("compress-b", "B", {"x": 2})
    assert written(a) == ["compress-a"]
    assert written(a) == []
    assert written(a, b) == ["compress-b"]
    assert written(b, a) == ["compress-a"], "not changed, but the newest now"
    assert newest_view(client.tags) == "compress-a"
    assert written(replace(b, state={"x": 3}), a) == ["compress-b", "compress-a"]
    assert newest_view(client.tags) == "compress-a"


def test_simulated_models_are_not_deployable() -> None:
    simulated = run("simulated", ms=None)
    values = {key.replace("quality/", "fake_quantized/"): value for key, value in simulated.metrics.items()}
    page = build([StoredRun("s", "s", "toy", 0, "", values, {}, simulated.tags)], nothing)
    assert page.tags["s"]["deployable"] == "no"
    assert "no run of this experiment has measured a model that could be shipped" in page.verdict


@pytest.mark.parametrize("mine", ["", "My notes."])
def test_what_a_person_wrote_stays(mine: str) -> None:
    first = replace_verdict(mine, f"{HEADING}\n\none\n\n{END}")
    assert first.startswith(mine)
    second = replace_verdict(f"{first}\n\nMore notes.", f"{HEADING}\n\ntwo\n\n{END}")
    assert second == "\n\n".join(filter(None, [mine, HEADING, "two", END, "More notes."]))
    assert replace_verdict(f"{mine}\n\n{HEADING}\n\nthe end is gone", "new") == "\n\n".join(filter(None, [mine, "new"]))


def test_a_store_that_does_not_answer_stops_nothing(tmp_path: object) -> None:
    renew(Store(f"sqlite:///{tmp_path}/none/mlflow.db"), "toy")


def test_files_are_read_of_the_runs_that_are_shown_alone() -> None:
    asked: list[str] = []
    build(RUNS, lambda shown: asked.extend(run.name for run in shown) or {})  # type: ignore[func-returns-value]
    assert sorted(asked) == ["chain", "teacher", "tiny"]


def test_each_data_set_has_its_own_verdict_the_newest_first() -> None:
    """More models were measured on the old data, which decide nothing about the new data."""
    other = {"measured.dataset": "reviews/test", "measured.dataset_digest": "other"}
    new = [run("small", mb=4.0, ms=1.0, started=9, **other), run("large", "teacher", mb=40.0, started=8, **other)]
    lines = build([*new, *RUNS], nothing).verdict.splitlines()
    headings = [line for line in lines if line.startswith("###")]
    assert headings == [
        f"{HEADING}: ship small: 10.0x smaller, 5.0x faster, no measurable loss on reviews/test, 200 rows",
        "#### ship chain: 5.0x smaller, 5.0x faster, no measurable loss on opinions/test, 200 rows",
    ]
    assert sum(line.startswith("| model |") for line in lines) == 2
    models = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    assert models == ["model", "small", "large", "model", "chain", "tiny", "teacher"]

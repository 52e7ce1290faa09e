"""`compress evaluate --robustness typos`: table, JSON, plot and MLflow run tell the same figures."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from e2e_toy import PRETRAINED, TEACHER, Cli

from compress.tracking import Store

TYPOS = ("evaluate", TEACHER, "--data", "data", "--robustness", "typos", "--bootstrap", "100")


def store(work: Path) -> Any:
    return Store(f"sqlite:///{work / 'mlruns' / 'mlflow.db'}").client()


def logged_runs(work: Path) -> Any:
    experiment = store(work).get_experiment_by_name("compress")
    return store(work).search_runs([experiment.experiment_id], "tags.`compress.robustness` = 'typos'")


@pytest.mark.store
def test_the_curve_is_told_alike_everywhere(taught: Path, compress: Cli) -> None:
    shutil.copytree(TEACHER, "模型")
    done = compress(*TYPOS, "--against", "模型", "--json", "--quiet", "--output", "out")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told == {"folder": "out", **json.loads(Path("out/robustness.json").read_text(encoding="utf-8"))}
    one, other = told["models"]
    assert [p["rate"] for p in one["points"]] == [0, 0.02, 0.05, 0.1, 0.2]
    assert one["points"] == other["points"], "the same mistakes for every model"
    assert one["points"][0]["lost"] == {"value": 0, "low": 0, "high": 0}
    plain = compress("evaluate", TEACHER, "--data", "data", "--json", "--quiet", "--bootstrap", "100")
    accuracy = json.loads(plain.out)["models"][0]["values"]["quality/accuracy"]
    assert one["points"][0]["values"]["accuracy"]["value"] == accuracy

    shown = [node.text for node in ET.parse("out/robustness.svg").iter() if node.tag.endswith("text")]
    assert "模型" in shown

    (run,) = logged_runs(taught)
    metrics = run.data.metrics
    for point in one["points"]:
        for name, value in point["values"].items():
            logged = metrics[f"robustness/typos_{name}_{100 * point['rate']:g}pct"]
            assert logged == pytest.approx(value["value"], abs=1e-5)
    assert "robustness/typos_accuracy_lost_20pct_low" in metrics
    ends = [metrics[f"robustness/typos_accuracy_difference_20pct_{end}"] for end in ("low", "high")]
    assert ends[0] == pytest.approx(-ends[1]), "the same model"
    assert ends[1] > 0, "no difference on a few rows is no certainty"
    assert run.data.params["against"] == "模型"
    assert {a.path for a in store(taught).list_artifacts(run.info.run_id)} >= {"robustness.json", "robustness.svg"}


@pytest.mark.store
@pytest.mark.thorough
def test_two_models_are_compared_row_by_row_at_every_rate(taught: Path, compress: Cli) -> None:
    assert compress("finetune", "--recipe", "finetune", "--model", PRETRAINED, "--data", "data", "--output", "other",
                    "--set", "stages.0.training.epochs=1").code == 0  # fmt: skip
    done = compress(*TYPOS, "--against", "other/model", "--json", "--quiet", "--output", "out")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    apart = told["difference"]
    assert (apart["model"], apart["against"], apart["metric"]) == ("teacher", "other", "accuracy")
    for point, one, other in zip(apart["points"], *(m["points"] for m in told["models"]), strict=True):
        gap = one["values"]["accuracy"]["value"] - other["values"]["accuracy"]["value"]
        assert point["value"]["value"] == pytest.approx(gap)
        assert point["value"]["low"] <= gap <= point["value"]["high"]
    (run,) = logged_runs(taught)
    for point in apart["points"]:
        for end, key in (("", "value"), ("_low", "low"), ("_high", "high")):
            logged = run.data.metrics[f"robustness/typos_accuracy_difference_{100 * point['rate']:g}pct{end}"]
            assert logged == pytest.approx(point["value"][key], abs=1e-5)

    table = compress(*TYPOS, "--against", "other/model").out
    assert table.splitlines()[0].endswith("difference, points")
    assert "teacher minus other, paired row by row" in table


@pytest.mark.thorough
def test_a_table_for_people_and_a_free_folder_each_time(taught: Path, compress: Cli) -> None:
    first, second = compress(*TYPOS), compress(*TYPOS)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    lines = first.out.splitlines()
    assert lines[0].split() == ["typo", "noise", "teacher", "lost,", "points"]
    assert [line.split()[0] for line in lines[2:7]] == ["0", "2", "5", "10", "20"]
    assert "plot     runs/typos-teacher/robustness.svg" in first.out
    assert "plot     runs/typos-teacher-2/robustness.svg" in second.out
    assert first.out.splitlines()[:7] == second.out.splitlines()[:7], "the same mistakes each time"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--robustness", "typo"), "--robustness: unknown disturbance 'typo'; did you mean 'typos'?"),
        (("--robustness", "sleet"), "--robustness: unknown disturbance 'sleet'; known: typos"),
        (("--output", "out"), "--output: only applies with --robustness; remove it, or add --robustness"),
        (("--experiment", "x"), "--experiment: only applies with --robustness; remove it, or add --robustness"),
    ],
)
def test_bad_requests(words: tuple[str, ...], message: str, taught: Path, compress: Cli) -> None:
    done = compress("evaluate", TEACHER, "--data", "data", *words)
    assert (done.code, done.line) == (2, f"error: {message}")


def test_a_folder_that_holds_something_is_left_alone(taught: Path, compress: Cli) -> None:
    done = compress(*TYPOS, "--output", "data")
    assert (done.code, done.line) == (3, "error: data: the folder is not empty; name a new folder")

"""`compress fit` and `compress verify` through the command line. One fit is shared by the tests that read it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e_toy import TEACHER, Cli, Server, copy_folder, sha, write_rows
from workers_here import WorkersHere

from compress.cascade import join
from compress.cascade.candidates import Candidate, find_parent
from compress.cascade.request import CascadeRequest
from compress.errors import Stopped
from compress.fit import run as fitting
from compress.fit.joined_family import join_family
from compress.fit.plan.planner import Problem
from compress.fit.plan.search import Search
from compress.fit.train import in_loop as inloop
from compress.fit.train import trainer
from compress.modelfolder import folder as modelfolder
from compress.predict.real_texts import TextLatency
from compress.run.measured import StageMeasurer
from compress.tracking.records import read

DATA = ("--data", "data", "--threads", "1")
ROUGH = ("--plans", "2", "--runtime", "onnxruntime")
QUICK = ("--length", "24", *ROUGH)


@pytest.fixture(scope="module")
def fitted(made: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a fit of the toy teacher in runs/small, made without a certificate: machines that run tests
    are busy. Not to be changed."""
    folder = tmp_path_factory.mktemp("fitted") / "work"
    copy_folder(made, folder)
    done = server.run(
        folder, "fit", TEACHER, *DATA, *ROUGH, "--max-mb", "0.05", "--uncertified", "--output", "runs/small", "--json"
    )
    assert done.code == 0, done.err
    (folder / "told.json").write_text(done.out)
    return folder


@pytest.fixture
def here(fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This test's copy of it."""
    folder = tmp_path / "work"
    copy_folder(fitted, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COMPRESS_CACHE", str(fitted / "cache"))  # blocks are timed once for all tests
    return folder


def test_what_a_fit_leaves(here: Path, compress: Cli) -> None:
    told = json.loads((here / "told.json").read_text())
    model = Path(told["model"])
    found = json.loads((model / "certificate.json").read_text())
    assert told["certificate"] == found
    written = list(model.parent.rglob("certificate.json"))
    assert written == [model / "certificate.json"], "a second one would not change with verify --measured"
    assert read(model.parent / "parent").start["name"] == f"{model.parent.name}/parent", "nothing taught"
    assert found["size_mb"] * 1e6 == (model / "model.onnx").stat().st_size <= 50_000
    assert found["status"] in ("certified", "uncertified")
    assert found["bounds"] == {"max_mb": 0.05, "max_ms": None, "max_drop": None, "objective": "quality"}
    assert found["dataset"].endswith("/test")
    latency = found["latency"]
    assert (found["format"], latency["data"], latency["rows"]) == (2, found["dataset"], found["rows"])
    assert len(latency["tokens"]) == 32
    assert 0 < latency["texts"]["tokenization"] < latency["texts"]["mean"]
    assert "x texts of " in (model / "README.md").read_text()
    assert {"device", "threads", "torch"} <= set(found["device"])
    assert set(found["versions"]) == {"compress", "python", "torch", "onnxruntime"}
    plans = told["plans"]
    assert plans[0]["name"] == "int8 only"
    assert 1 < len(plans) <= 3
    assert all(row["mb"] <= 0.05 for row in plans[1:])
    assert "certificate: size" in (model / "README.md").read_text()
    assert compress("predict", model, "she said the film was good").code == 0


def test_a_dry_run_of_a_fit_measures_nothing(here: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        pytest.fail("measured")

    monkeypatch.setattr(fitting, "set_up", fail)
    before = sorted(here.rglob("*"))
    flags = ("--max-mb", "0.05", "--train", "full", "--steps", "8", "--output", "runs/other", "--dry-run")
    told = compress("fit", TEACHER, *DATA, *ROUGH, *flags).out
    for line in (
        "data: data: ",
        "goal: the best model with at most 0.05 MB; batch size 1, the lengths of the test rows, on this machine",
        "plan: build up to 2 models, compare them on ",
        "train: recovery training, the 4 best for 2 steps, then the 2 best for 4 steps, then the best for 8 steps",
        "train: the best one with quantization-aware training, 8 steps",
        "certify: the best one on ",
    ):
        assert line in told
    forecast = compress("fit", TEACHER, *DATA, *ROUGH, "--max-mb", "0.05", "--plan-only", "--dry-run", "--json").out
    assert json.loads(forecast)["plan"][-1] == "plan: forecasts only; no model is built"
    assert sorted(here.rglob("*")) == before


def test_a_certificate_is_held_against_its_folder(here: Path, compress: Cli) -> None:
    model = here / "runs/small/model"
    checked = compress("verify", model, "--data", "data", "--json")
    verdicts = {row["what"]: row["verdict"] for row in json.loads(checked.out)["checks"]}
    assert verdicts["files"] == verdicts["size"] == verdicts["quality"] == "holds"
    assert checked.code == (0 if set(verdicts.values()) == {"holds"} else 3)
    (model / "model.onnx").write_bytes(b"another")
    changed = compress("verify", model)
    assert changed.code == 4
    assert "the certificate does not hold: files: model.onnx is not the certified file" in changed.err


def test_bad_input(here: Path, compress: Cli) -> None:
    cases = {
        ("--max-mb", "0"): (2, "--max-mb: 0 is not possible; give a number above 0"),
        ("--max-mb", "1", "--steps", "9"): (2, "--steps: needs training; add --train recover or --train full"),
        ("--max-mb", "1", "--workers", "2"): (2, "--workers: needs training; add --train recover or --train full"),
        (): (2, "compress fit: at least one bound is required; add --max-mb, --max-ms or --max-drop"),
        ("--max-mb", "0.001"): (3, "--max-mb: 0.001 MB is below the smallest possible value"),
        ("--max-drop", "0.5"): (2, "--max-drop: 32 test rows are too few to show a loss of accuracy below 0.5 points"),
        ("--max-ms", "0.0001"): (2, "--max-ms: 0.0001 ms is less than the tokenizer alone takes for a text"),
        ("--max-mb", "1", "--length", "999"): (2, f"--length 999: {TEACHER} has 64 positions; give at most 64"),
        ("--max-mb", "1", "--time", "soon"): (2, "'soon' is not a time, such as 90s, 10m or 2h"),
    }
    for flags, (code, message) in cases.items():
        done = compress("fit", TEACHER, *DATA, *flags, "--output", "runs/none")
        assert (done.code, message in done.err) == (code, True), done.err
    assert not (here / "runs/none").exists()
    quantized = compress("fit", "runs/small/model", *DATA, "--max-mb", "0.04")
    assert quantized.code == 2
    assert "quantized" in quantized.err
    plain = compress("verify", TEACHER)
    assert plain.code == 2
    assert "no certificate.json in this folder; compress fit writes one" in plain.err


@pytest.mark.thorough
def test_a_stopped_fit_leaves_the_best_and_goes_on_and_needs_no_labels(
    here: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "validation", "test"):
        rows = [json.loads(line) for line in (here / f"data/{split}.jsonl").read_text().splitlines()]
        write_rows(here / f"bare/{split}.jsonl", [{"text": row["text"]} for row in rows])
    refused = compress("fit", TEACHER, "--data", "bare", "--max-mb", "0.05", "--train", "recover")
    assert refused.code == 2
    assert "--train recover: the data has no labels to train with; use labelled data" in refused.err
    asked = ("fit", TEACHER, "--data", "bare", "--threads", "1", *QUICK, "--max-mb", "0.05", "--uncertified")
    with monkeypatch.context() as patch:
        patch.setattr(Search, "next", stop_here)
        stopped = compress(*asked, "--output", "runs/bare")
    assert stopped.code == 75, stopped.err
    assert (
        "the best model so far, int8 only, which is closest to the bounds, was copied to runs/bare/model" in stopped.err
    )
    assert "--resume" in stopped.err
    assert compress("predict", "runs/bare/model", "she said the film was good").code == 0
    first = next((here / "runs/bare/plans").glob("*/judged.json")).stat().st_mtime_ns
    done = compress(*asked, "--output", "runs/bare", "--resume", "--json")
    assert done.code == 0, done.err
    assert "the metric is the agreement with the parent's predictions" in done.err
    found = json.loads(done.out)["certificate"]
    assert found["quality"]["labels"] == "the parent's answers"
    assert found["parent"]["quality"] == 1
    assert min(p.stat().st_mtime_ns for p in (here / "runs/bare/plans").glob("*/judged.json")) == first


@pytest.mark.thorough
def test_plans_are_healed_and_trained_rounded_and_judged_beside_the_others(
    here: Path, compress: Cli, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("fit", TEACHER, *DATA, *QUICK, "--max-mb", "0.03", "--uncertified", "--train", "full", "--steps", "8")
    asked = (*asked, "--trials", "1", "--output", "runs/healed", "--json")
    stopped = server.run(here, *asked, signal_at=(1, "SIGINT"))  # of the two steps of the first rung's first plan
    assert stopped.code == 75, stopped.err
    assert stopped.out == ""
    assert "stopped by SIGINT after step 1 of 2; the state is saved" in stopped.err
    rung = next((here / "runs/healed/plans").glob("*/healing/rung-0"))
    assert "was copied to runs/healed/model without a certificate" in stopped.err
    assert stopped.err.count("compress ") == 1, "the command of the fit alone goes on"
    monkeypatch.setattr(StageMeasurer, "measure", None)  # no run below measures what the fit judges itself
    done = compress(*asked, "--resume")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    plans = {row["name"]: row for row in told["plans"]}
    healed = [name for name in plans if "recovery steps" in name]
    assert plans[healed[-1]]["steps"] == 2 + 4 + 8, "each rung goes on where the one before it stood"
    journal = (rung / "tracking/journal.jsonl").read_text()
    assert "KILLED" in journal
    assert '"val/accuracy"' in journal, "it went on to its end"
    assert "nothing to resume" not in done.err
    for name in healed:
        plain = plans[name.partition(",")[0]]
        assert plans[name]["mb"] == pytest.approx(plain["mb"], rel=0.01)
        assert plans[name]["apart"] != plain["apart"], "it was trained"
    cards = [path.read_text() for path in (here / "runs/healed/plans").glob("*/healing/rung-2/fitted/README.md")]
    assert len(cards) == 1
    assert "after 14 steps of recovery training" in cards[0]
    assert [row["steps"] for row in told["plans"] if row["name"].startswith("trial 0, ")] == [2, 4, 8]
    loop = next(row for row in told["plans"] if row["name"].endswith(" steps, 8 of them quantized"))
    before = next(row for row in told["plans"] if row["plan"]["key"] == loop["plan"]["key"])
    assert loop["mb"] == pytest.approx(before["mb"], rel=0.01)
    assert loop["steps"] == 8 + max(row["steps"] for row in told["plans"] if loop["steps"] - row["steps"] == 8)
    card = next((here / "runs/healed/plans").glob("**/in-the-loop/fitted/README.md")).read_text()
    assert "the last 8 with quantization" in card
    assert (here / "runs/healed/model/model.onnx").stat().st_size <= 30_000


@pytest.mark.thorough
def test_workers_train_the_candidates_to_the_bytes_of_one_process(
    here: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("fit", TEACHER, *DATA, *QUICK, "--max-mb", "0.03", "--uncertified", "--train", "recover", "--steps", "8")
    alone = compress(*asked, "--output", "runs/alone")
    assert alone.code == 0, alone.err
    workers = WorkersHere()
    monkeypatch.setattr(trainer, "choose_executor", lambda *_, **__: workers)
    done = compress(*asked, "--trials", "2", "--workers", "2", "--output", "runs/shared")
    assert done.code == 0, done.err
    trained = {name: weights(here / "runs" / name) for name in ("alone", "shared")}
    assert len(trained["alone"]) == 5, "two plans in two rounds, then the better one"
    assert trained["alone"].items() <= trained["shared"].items()
    assert len(workers.begun) == 2 * 2 + 3 * 2, "two rounds of two plans, and three of two trials"
    for folder in (here / "runs/alone", here / "runs/shared"):
        for rung in folder.glob("plans/*/healing/rung-0"):
            assert re.fullmatch(rf"{folder.name}/plan \d, 2 recovery steps", read(rung).start["name"])
    records = (here / "runs/shared").rglob("compress-run.json")
    assert {json.loads(path.read_text())["status"] for path in records} == {"finished"}


def weights(folder: Path) -> dict[str, str]:
    """Digests of what each training left, rounded and not. The names of the files depend on the plan, which on a busy
    machine is not always the same."""
    found = sorted(folder.glob("plans/*/healing/rung-*/student"))
    return {str(one.relative_to(folder)): "".join(map(sha, sorted(one.glob("*.safetensors")))) for one in found}


@pytest.mark.thorough
def test_layers_that_share_are_trained_and_rounded_too(
    here: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Search.__post_init__

    def joins_are_cheap(search: Search) -> None:
        """Toys have nothing to save by sharing: all else loses much here."""
        made(search)
        search.problems = [dear_alone(problem) for problem in search.problems]

    def dear_alone(problem: Problem) -> Problem:
        inside = {i for run in problem.runs[:1] for i in (run.first, run.first + 1)}
        layers = [
            replace(x, attention=replace(x.attention, loss=x.attention.loss + 9.0), drop=None) if i in inside else x
            for i, x in enumerate(problem.layers)
        ]
        return replace(problem, layers=layers)

    monkeypatch.setattr(Search, "__post_init__", joins_are_cheap)
    monkeypatch.setattr(
        inloop, "choose_result", lambda tried, *_: (tried[-1], True)
    )  # the healed one, whatever is best
    monkeypatch.setattr(StageMeasurer, "measure", None)
    done = compress(
        "fit", TEACHER, *DATA, "--length", "24", "--plans", "1", "--runtime", "onnxruntime", "--max-mb", "0.2",
        "--uncertified", "--train", "full", "--steps", "4", "--output", "runs/joined", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    rows = json.loads(done.out)["plans"]
    joined = [row for row in rows if row["plan"]["joined"]]
    assert [row["steps"] for row in joined] == [0, 1, 3, 7, 11], done.err
    assert len({row["apart"] for row in joined}) == 5, "each was trained"
    last = next((here / "runs/joined/plans").glob("**/in-the-loop/fitted"))
    config = modelfolder.inspect(last).config
    assert config.sharing is not None
    assert config.sharing.shares
    assert "share parameters" in (last / "README.md").read_text()
    assert compress("predict", last, "she said the film was good").code == 0


def stop_here(search: Search) -> None:
    raise Stopped("stopped by a test")


@pytest.mark.thorough
def test_a_forecast_makes_nothing_and_a_family_is_measured(here: Path, compress: Cli) -> None:
    asked = ("fit", TEACHER, *DATA, "--length", "24", "--runtime", "onnxruntime", "--uncertified", "--json")
    shown = compress(*asked, "--max-drop", "100", "--plan-only", "--output", "runs/none")
    assert shown.code == 0, shown.err
    forecast = json.loads(shown.out)
    assert all(row["mb"] > 0 and 0 < row["ms_low"] < row["ms"] < row["ms_high"] for row in forecast["plans"])
    assert all(row["points_lost"] is None for row in forecast["plans"])
    assert any("unknown where fewer than 9 earlier plans" in line for line in forecast["notes"])
    assert not (here / "runs/none").exists()
    done = compress(*asked, "--max-mb", "0.06", "--family", "--plans", "3", "--output", "runs/family")
    assert done.code == 0, done.err
    assert "loss measurements: reused from an earlier fit" in done.err
    told = json.loads(done.out)
    rows = {row["name"]: row for row in told["plans"]}
    assert set(told["family"]) <= rows.keys()
    for name in told["family"]:
        assert (here / "runs/family/plans" / rows[name]["plan"]["key"] / "model/model.onnx").is_file()


@pytest.mark.thorough
def test_the_models_of_a_fit_are_joined_into_a_cascade(
    here: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No single model is within the bound here, and the fast ones are sure of the few rows that they answer right."""
    measured = join.measure_candidates

    def measure_stand_ins(request: CascadeRequest) -> list[Candidate]:
        found = measured(request)
        parent = found[find_parent(found)]
        easy = np.arange(len(parent.right)) % 3 == 0
        fast, slow = (TextLatency(ms, ms, ms, 0.1) for ms in (1.0, 100.0))
        sure: dict[str, Any] = {"confidence": np.where(easy, 0.9, 0.5), "right": easy, "latency": fast}
        others = [replace(one, temperature=1.0, **sure) for one in found if one is not parent]
        return [*others, replace(parent, right=np.ones_like(easy), latency=slow)]

    monkeypatch.setattr(join, "measure_candidates", measure_stand_ins)
    monkeypatch.setattr(fitting, "join_family", lambda *args: join_family(*args[:5], met=False))
    how = (*ROUGH, "--max-drop", "60", "--cascade", "--uncertified", "--output", "runs/joined", "--json")
    done = compress("fit", TEACHER, *DATA, *how)
    assert done.code == 0, done.err
    told = json.loads(done.out)
    joined = told["cascade"]
    assert joined["accepted"], done.err
    assert joined["is_cascade"]
    assert joined["chosen"][-1] == "parent"
    assert told["model"] == joined["folder"] == "runs/joined/cascade"
    certificate = joined["certificate"]
    assert certificate == json.loads((here / "runs/joined/cascade/certificate.json").read_text())
    assert certificate["status"] == "certified"
    assert certificate["bounds"] == {"max_drop": 60.0, "confidence": None}, "the rows that test chose the models too"
    assert certificate["dataset"].endswith("/test")
    assert certificate["parent"]["name"] == "parent"
    assert sum(stage["rows"] for stage in certificate["stages"]) == certificate["rows"]
    assert read(here / "runs/joined/cascade-run").start["name"] == "joined/cascade"
    parent = modelfolder.inspect("runs/joined/parent-model")
    assert parent.config.quantization is None
    assert compress("predict", told["model"], "she said the film was good").code == 0

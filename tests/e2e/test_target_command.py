"""`compress profile`, `compress fit --target` and `compress verify --kit`: a model for another machine, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_toy import TEACHER, Cli
from kits import run_kit

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

DATA = ("--data", "data", "--threads", "1")
FIT = ("fit", TEACHER, *DATA, "--plans", "1", "--target", "target.json")


def test_what_cannot_be_profiled(taught: Path, compress: Cli) -> None:
    (taught / "there.json").write_text("{}")
    for args, code, message in (
        ((), 2, "--output: an output file is required; add --output target.json, or kit.pyz to measure on another"),
        (("--output", "target.txt"), 2, "--output target.txt: ends neither in .json nor in .pyz; name a file such as"),
        (("--output", "there.json"), 3, "there.json: exists already; name another file"),
        (("--output", "there.json/target.json"), 2, "there.json/target.json: a part of the path is a file, not a"),
        (("--output", "kit.pyz", "--threads", "2"), 2, "--threads: is chosen where the kit runs; remove it, and give"),
        (("--output", "a.json", "--lengths", "8,x"), 2, "'8,x' is not a list of lengths, such as 8,16,32"),
        (("--output", "a.json", "--lengths", "8,999"), 2, "--lengths 999: the model has 64 positions; give at most 64"),
    ):
        done = compress("profile", TEACHER, *args)
        assert (done.code, message in done.err) == (code, True), done.err
    assert not list(taught.glob("*.pyz"))
    assert not (taught / "a.json").exists()


@pytest.mark.thorough
def test_a_model_for_another_machine(taught: Path, compress: Cli) -> None:
    kit = compress("profile", TEACHER, "--output", "kit.pyz", "--json")
    assert kit.code == 0, kit.err
    ran = run_kit(taught / "kit.pyz", "--threads", "1", "--runtime", "onnxruntime", "--lengths", "8,16,32")
    assert ran.returncode == 0, ran.stderr
    lacks = "target.json: runtimes.onnxruntime.lengths lacks 64 tokens; measure it again with --lengths 8,16,32,64"
    for flags, message in (
        (("--length", "64"), lacks),
        (("--length", "16", "--batch", "2"), "target.json: batch is 1, the fit's is 2; add --batch 1"),
        (("--length", "16", "--runtime", "openvino"), "target.json: runtimes has no 'openvino'"),
    ):
        refused = compress(*FIT, "--max-mb", "0.05", *flags, "--output", "runs/none")
        assert (refused.code, message in refused.err) == (2, True), refused.err
    assert not (taught / "runs/none").exists()
    done = compress(*FIT, "--max-mb", "0.05", "--output", "runs/small", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    found = told["certificate"]
    assert found["status"] == "predicted"
    assert found["device"]["threads"] == "1"
    assert found["why"][0].startswith("the latency is predicted for target.json (")
    assert all(plan["timing"]["predicted"] for plan in told["plans"])
    assert all(plan["timing"]["p50"] == plan["plan"]["ms"] for plan in told["plans"])
    model = Path(told["model"])
    assert "not yet measured there" in (model / "README.md").read_text()
    before = compress("verify", model, "--json")
    assert before.code == 3
    assert "run a new kit there: compress verify MODEL --kit check.pyz" in before.out
    assert compress("verify", model, "--kit", "check.pyz").code == 0
    assert run_kit(taught / "check.pyz").returncode == 0
    after = compress("verify", model, "--measured", "measured.json", "--json")
    verdicts = {row["what"]: row["verdict"] for row in json.loads(after.out)["checks"]}
    assert verdicts["files"] == verdicts["size"] == "holds"
    complete = json.loads((model / "certificate.json").read_text())
    assert complete["status"] == ("certified" if complete["latency"]["quiet"] else "uncertified")
    assert after.code == (0 if complete["latency"]["quiet"] else 3)
    card = (model / "README.md").read_text()
    assert "not yet measured there" not in card
    assert card.count("certificate: latency") == 1

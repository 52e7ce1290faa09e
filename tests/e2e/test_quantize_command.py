"""`compress quantize` through the real command line, at toy scale."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e_toy import DISTILL, QUICK, TEACHER, Cli, Done, sha

from compress.modelfolder.folder import inspect
from compress.storage import atomic

RECIPE = f"""
extends: quantize
description: round a toy
data: {{max_length: 24}}
{QUICK}
stages:
  0: {{rows: 32, scan_rows: 16}}
"""


TRAINED = """
extends: qat
description: train a rounded toy
data: {max_length: 24}
{quick}
stages:
  0: {rows: 32, sensitivity: false}
  1: {training: {epochs: null, steps: 4, batch_rows: 8, validate_every: 2}}
"""


@pytest.fixture
def trained(taught: Path, compress: Cli) -> Callable[..., Done]:
    """`compress quantize TEACHER --mode qat ...` on the toy data."""
    Path("trained.yaml").write_text(TRAINED.replace("{quick}", QUICK), encoding="utf-8")
    words = ("quantize", TEACHER, "--mode", "qat", "--recipe", "./trained.yaml", "--data", "data", "--threads", "1")
    return lambda *args: compress(*words, *args)


@pytest.fixture
def quantize(taught: Path, compress: Cli) -> Cli:
    """`compress quantize TEACHER ...` on the toy data."""
    Path("round.yaml").write_text(RECIPE, encoding="utf-8")

    def run(*args: str | Path):
        return compress("quantize", TEACHER, "--recipe", "./round.yaml", "--data", "data", "--threads", "1", *args)

    return run


def test_quantize_scan_fall_back_and_measure(quantize: Cli, compress: Cli) -> None:
    done = quantize("--scheme", "static", "--max-drop", "100", "--output", "runs/q", "--json", "--no-onnx")
    assert done.code == 0, done.err
    folder = Path("runs/q/model")
    assert not atomic.verify_folder(folder)
    assert not (folder / "model.onnx").exists()
    assert "all modules quantized: KL divergence" in done.err
    values = _result(done)["values"]
    assert 0 <= values["fake_quantized/accuracy"] <= 1
    assert "fake_quantized/vs_teacher/agreement_pct" in values
    assert not [k for k in values if k.startswith(("quality/", "speed/latency", "vs_teacher/agreement", "memory/"))]
    assert values["size/integer_mb"] < 0.5 * values["size/disk_mb"]
    assert (inspect(folder).meta.notes or [""])[-1].startswith("quantized by static")

    again = compress("quantize", folder, "--recipe", "./round.yaml", "--data", "data", "--threads", "1")
    assert again.code == 2
    assert "quantized already" in again.line
    shown = compress("evaluate", folder, "--data", "data", "--threads", "1", "--bootstrap", "100", "--runtime", "torch")
    assert shown.code == 0, shown.err
    assert "(simulated)" in shown.out + shown.err
    assert "latency p50" not in shown.out + shown.err


def _result(done: Done) -> dict[str, Any]:
    """What is said of the model that the run leaves."""
    told = json.loads(done.out)
    return next(m for m in told["models"] if m["role"] == "student")


@pytest.mark.thorough
@pytest.mark.parametrize("how", [(), ("--bits", "2"), ("--scheme", "int3-rows")], ids=["int8", "2 bits", "3 bits"])
def test_training_ends_in_the_file_that_is_measured(
    how: tuple[str, ...], trained: Callable[..., Done], compress: Cli
) -> None:
    """Float, PTQ, trained with and without distillation; what validates best is the run's model."""
    pytest.importorskip("onnxruntime")
    done = trained(*how, "--output", "runs/qat", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert [m["name"] for m in told["models"]] == ["teacher", "PTQ", "QAT alone", "QAT + distillation"]
    assert told["model"] == "runs/qat/model"
    assert not atomic.verify_folder(Path("runs/qat/model"))
    for made in told["models"][1:]:
        assert made["context"]["runtime"].startswith("onnxruntime ")
        assert {"quality/accuracy", "fake_quantized/accuracy"} <= made["values"].keys()
        # On a machine too busy to tell, a run says so in the place of a latency.
        assert ("speed/latency_p50_ms" in made["values"]) == (made["context"]["contaminated"] == "no")
    rated = {line.partition(": ")[0]: line for line in told["notes"]}
    kept = rated["selected"]
    assert re.match(r"selected: (PTQ|QAT alone|QAT \+ distillation), accuracy [\d.]+ % on validation; ", kept)
    name = kept.removeprefix("selected: ").partition(",")[0]
    folder = Path(next(m["folder"] for m in told["models"] if m["name"] == name))
    for file in ("model.safetensors", "model.onnx", "onnx.json"):
        assert sha(Path("runs/qat/model", file)) == sha(folder / file)
    assert ("training did not improve it" in done.err + done.out) == (name == "PTQ")
    done = compress("predict", "runs/qat/model", "the film was good")
    assert done.code == 0, done.err


@pytest.mark.thorough
def test_a_student_is_born_int8(taught: Path, compress: Cli) -> None:
    """Cut from its float teacher and trained with rounded numbers: what is measured is the file, of its control too."""
    pytest.importorskip("onnxruntime")
    more = ("--set", "stages.0.quantize={scheme: per-token}", "--set", "stages.0.training.precision=fp32")
    done = compress(*DISTILL, *more, "--set", "stages.0.control=true", "--output", "runs/born", "--json")
    assert done.code == 0, done.err
    student, control = json.loads(done.out)["models"][1:]
    for made in (student, control):
        assert made["context"]["precision"] == "int8 per-token"
        assert Path(made["folder"], "model.onnx").is_file()
    assert inspect(student["folder"]).config.quantization is not None
    assert "quantization-aware training: " in done.err


@pytest.mark.slow
def test_seeds_of_a_training(trained: Callable[..., Done]) -> None:
    done = trained("--output", "runs/seeds", "--seeds", "2")
    assert done.code == 0, done.err
    assert "mean and standard deviation of 2 seeds" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--scheme", "per-tokn"), "--scheme: unknown scheme 'per-tokn'; did you mean 'per-token'?"),
        (("--float", "encoder.layer.0.*"), "'encoder.layer.0.*' matches no matrix or table of the model"),
        (("--max-drop", "-1"), "max_drop"),
        (("--fall-back", "float"), "--fall-back float: only applies with --max-drop; add --max-drop POINTS"),
        (("--mode", "qat"), "--mode qat: recipe round has no training after quantization"),
        (("--set", "stages.0.rules=[{pattern: '*', weight: {kind: per_channel, bits: 1}}]"), "bits"),
        (("--data", "empty.jsonl"), "empty.jsonl"),
    ],
)
def test_bad_input(quantize: Cli, words: tuple[str, ...], message: str) -> None:
    Path("empty.jsonl").touch()
    done = quantize(*words, "--output", "runs/bad")
    assert done.code == 2
    assert message in done.line
    assert not Path("runs/bad/model").exists()
    assert not Path("runs/bad/student").exists()

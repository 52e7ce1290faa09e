"""`compress benchmark --suite gpu` runs whole: every case is measured or says why not, and no training step waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import run_script

from compress.cli import main as frame
from compress.commands.gpu_suite import LOSSES, Sizes, predict_step
from compress.errors import ExitCode
from evaluation.cost import roofline


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("suite") / "gpu.json"


@pytest.fixture(scope="module")
def printed(written: Path) -> dict[str, Any]:
    """The report of the suite, and the launches of steps: one process makes both."""
    return run_script("gpu_suite.py", str(written))


@pytest.mark.thorough
def test_every_case_is_measured_or_says_why(printed: dict[str, Any], written: Path) -> None:
    report = printed["report"]
    assert report == json.loads(written.read_text())
    assert report["device"]["device"] == "simulated"
    assert set(report["ceilings"]) == {"flops", "bytes", "launch"}
    figures = report["figures"]
    steps = [(f["case"], f["way"]) for f in figures if f["kind"] == "training"]
    assert steps == [(f"{loss}, 4 x 6", way) for loss in LOSSES for way in ("compress", "compress, CUDA graph")]
    for figure in figures:
        assert ("why" in figure) != ("device_ms" in figure), figure
        if figure["way"] == "compress":
            assert figure["predicted_ms"] > 0
            assert figure["tokens_per_second"] > 0
            assert figure["waits"] == 0, figure
    assert {f["way"] for f in figures} >= {
        "Hugging Face SDPA",
        "compress, compiled",
        "compress, CUDA graph",
        "TensorRT",
    }
    assert all(f["waits"] == 0 for f in figures if f["way"] == "compress, CUDA graph")


@pytest.mark.thorough
def test_launches_are_predicted(printed: dict[str, Any]) -> None:
    assert printed["launches"]
    for name, one in printed["launches"].items():
        assert one["predicted"] == pytest.approx(one["kernels"], rel=0.02), name


def test_a_step_is_bound_by_launches_or_by_the_device() -> None:
    sizes = Sizes()
    small, large = (predict_step("task", sizes, rows, length, roofline.H100) for rows, length in ((32, 25), (256, 128)))
    assert small.ms == small.host_ms > small.device_ms
    assert large.ms == large.device_ms > large.host_ms
    # 12 layers forward, 6 layers forward and backward: 30 passes of a layer with 2 x 7.1 M multiply-adds a token.
    assert large.flops == pytest.approx(32_768 * 30 * (2 * 7_077_888 + 4 * 128 * 768))


@pytest.mark.parametrize(
    ("words", "line", "code"),
    [
        (["--suite", "gpu", "--device", "cpu"], "--suite gpu: the suite measures a GPU", ExitCode.ENVIRONMENT),
        ([".", "--suite", "gpu"], ".: the suite measures fixed shapes, not models; remove", ExitCode.INPUT),
        (["--suite", "gpu", "--batch", "2"], "--batch: has no effect with --suite; remove --batch", ExitCode.INPUT),
        ([], "missing argument 'MODELS...'", ExitCode.INPUT),
        ([".", "--suite-output", "a.json"], "--suite-output: has no effect without --suite", ExitCode.INPUT),
    ],
)
def test_bad_input(words: list[str], line: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(["benchmark", *words]) == code
    assert line in capsys.readouterr().err

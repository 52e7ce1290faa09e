"""`compress quantize` through the real command line, at toy scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_toy import QUICK, TEACHER, Cli

from compress.durable import atomic
from compress.modelfolder.folder import inspect

RECIPE = f"""
extends: quantize
description: round a toy
data: {{max_length: 24}}
{QUICK}
stages:
  0: {{rows: 32, scan_rows: 16}}
"""


@pytest.fixture
def quantize(taught: Path, compress: Cli) -> Cli:
    """`compress quantize TEACHER ...` on the toy data."""
    Path("round.yaml").write_text(RECIPE, encoding="utf-8")

    def run(*args: str | Path):
        return compress("quantize", TEACHER, "--recipe", "./round.yaml", "--data", "data", "--threads", "1", *args)

    return run


def test_quantize_scan_fall_back_and_measure(quantize: Cli, compress: Cli) -> None:
    done = quantize("--scheme", "static", "--max-drop", "100", "--output", "runs/q", "--json")
    assert done.code == 0, done.err
    folder = Path("runs/q/model" if Path("runs/q/model").is_dir() else "runs/q/student")
    assert not atomic.verify_folder(folder)
    assert "all modules quantized: KL divergence" in done.err
    made = next(m for m in json.loads(done.out)["models"] if m["folder"].endswith(folder.name) and "q" in m["folder"])
    values = made["values"]
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--scheme", "per-tokn"), "--scheme: unknown scheme 'per-tokn'; did you mean 'per-token'?"),
        (("--float", "encoder.layer.0.*"), "'encoder.layer.0.*' matches no matrix or table of the model"),
        (("--max-drop", "-1"), "max_drop"),
    ],
)
def test_bad_input(quantize: Cli, words: tuple[str, ...], message: str) -> None:
    done = quantize(*words, "--output", "runs/bad")
    assert done.code == 2
    assert message in done.line
    assert not Path("runs/bad/model").exists()
    assert not Path("runs/bad/student").exists()

"""Runtimes that are absent, files that they cannot read, and what the processor is asked for."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from compress.contracts import Batch
from compress.errors import ExitCode, UserError
from compress.onnx import model_file as deployed
from compress.onnx.check import ReferenceOutputs
from compress.onnx.openvino_session import OpenVinoSession
from compress.onnx.runtimes import RUNTIMES, versions
from compress.onnx.session import FileSession, OnnxSession
from evaluation.cost import cpu

SESSIONS = {"onnxruntime": OnnxSession, "openvino": OpenVinoSession}


@pytest.mark.parametrize(("runtime", "extra"), [("onnxruntime", "onnx"), ("openvino", "openvino")])
def test_an_absent_runtime_names_its_extra(runtime: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, runtime, None)
    with pytest.raises(UserError) as caught:
        SESSIONS[runtime](b"")
    assert caught.value.line() == (
        f"--runtime {runtime}: {runtime} is not installed; pip install 'compress-bert[{extra}]'"
    )
    assert caught.value.code == ExitCode.ENVIRONMENT


def test_without_onnx_nothing_is_exported_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "compress.onnx.graph", raising=False)
    with pytest.raises(UserError) as caught:
        importlib.import_module("compress.onnx.graph")
    assert caught.value.line() == "ONNX: onnx is not installed; pip install 'compress-bert[onnx]'"
    assert caught.value.code == ExitCode.ENVIRONMENT


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_file_that_is_no_model(runtime: Literal["onnxruntime", "openvino"], tmp_path: Path) -> None:
    if versions()[runtime] is None:  # looked up, not imported: importing openvino starts its telemetry
        pytest.skip(f"{runtime} is not installed")
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(UserError, match=f"{runtime} cannot load this file") as caught:
        SESSIONS[runtime](tmp_path / "model.onnx")
    assert caught.value.where == str(tmp_path / "model.onnx")
    assert caught.value.why is not None
    assert "\n" not in caught.value.why


@pytest.mark.thorough
@pytest.mark.skipif(versions()["openvino"] is None, reason="openvino is not installed")
def test_openvino_comes_without_its_telemetry(tmp_path: Path) -> None:
    """In a process of its own, whose home stays empty."""
    code = """
import sys
from compress.onnx.openvino_session import OpenVinoSession
try:
    OpenVinoSession(b"")
except Exception as error:
    assert "openvino cannot load this file" in str(error), error
assert "openvino" in sys.modules
assert not [name for name in sys.modules if name.startswith("openvino_telemetry")]
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "HOME": str(tmp_path)}, check=True, timeout=120)
    assert list(tmp_path.iterdir()) == []


def test_versions_of_all_runtimes() -> None:
    found = versions()
    assert tuple(found) == RUNTIMES
    assert found["torch"]


FLAGS = {"vnni": "flags\t\t: fpu avx2 avx512f avx512_vnni", "old": "vmx flags\t: vnmi\nflags\t\t: fpu avx2"}


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(text: str, machine: str = "x86_64") -> None:
        (tmp_path / "cpuinfo").write_text(f"model name\t: A CPU: 3 GHz\n{text}\n")
        monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(cpu.platform, "machine", lambda: machine)
        cpu.cpu_flags.cache_clear()
        cpu.cpu_name.cache_clear()

    yield write
    cpu.cpu_flags.cache_clear()
    cpu.cpu_name.cache_clear()


def test_a_processor_is_read(cpuinfo) -> None:
    cpuinfo(FLAGS["vnni"])
    assert cpu.cpu_name() == "A CPU: 3 GHz"
    assert cpu.cpu_flags() == ("avx2", "avx512f", "avx512_vnni")
    assert not cpu.saturates()
    cpuinfo(FLAGS["old"])
    assert cpu.cpu_flags() == ("avx2",)
    assert cpu.saturates()
    cpuinfo("Features\t: asimd asimddp", "aarch64")
    assert cpu.cpu_flags() == ("asimd", "asimddp")
    assert not cpu.saturates()


def test_the_usual_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert deployed.usual_runtime(tmp_path) == "torch"
    (tmp_path / deployed.FILE).touch()
    (tmp_path / deployed.RECORD).write_text('{"precision": "fp32"}')
    assert deployed.usual_runtime(tmp_path) == "torch"
    (tmp_path / deployed.RECORD).write_text('{"precision": "int8 per-token"}')
    for there, usual in (
        ({"onnxruntime": "1", "openvino": "1"}, "onnxruntime"),
        ({"openvino": "1"}, "openvino"),
        ({}, "torch"),
    ):
        monkeypatch.setattr(deployed, "versions", lambda there=there: {name: there.get(name) for name in RUNTIMES})
        assert deployed.usual_runtime(tmp_path) == usual


def test_a_check_tells_what_is_wrong() -> None:
    batch = _batch()
    right = np.asarray([[1.0, 2.0], [3.0, 1.0]], np.float32)
    expected = ReferenceOutputs([batch], [right], "random tokens")
    same = expected.check(lambda _: right)
    assert same.complaint is None
    assert same.agreement == 1.0
    other = expected.check(lambda _: np.add(right, [[0, -1.5], [0, 0]]))
    assert other.complaint == "its outputs differ from the model's by 1.5e+00, allowed: at most 3.0e-04"
    assert (other.agreement, other.mean) == (0.5, 0.375)
    assert expected.check(lambda _: right * np.nan).complaint


def _batch() -> Batch:
    import torch

    ids = torch.tensor([5, 6, 7])
    return Batch(ids, ids * 0, torch.tensor([0, 1, 0]), torch.tensor([0, 2, 3]), 2, torch.tensor([0, 1]))


def test_a_session_is_asked_for_what_it_reads() -> None:
    class Echo(FileSession):
        inputs, outputs, per_token = ["input_ids"], ["logits", "last_hidden_state"], [False, True]

        def infer(self, feed):
            assert set(feed) == {"input_ids"}
            return [feed["input_ids"][:, :1].astype(np.float32), feed["input_ids"]]

    found = Echo().run(_batch())
    assert found["logits"].tolist() == [[5], [7]]
    assert found["last_hidden_state"].tolist() == [5, 6, 7]

"""onnxruntime on a GPU, without one: what it is given, by a stub; bound memory, by its CPU provider."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from compress.contracts import Needs
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError
from compress.fit.cost.serving import Serving, build_parts, candidates, open_runtime
from compress.onnx import gpu_session, model_file, runtimes
from compress.onnx.encoder import encode
from compress.onnx.gpu_session import BoundSession, computed_in, list_providers, open_on_gpu
from compress.onnx.session import OnnxSession
from compress.onnx.start import start_onnxruntime
from compress.predict.predictor import Predictor, build_fixed_batch

CPU = torch.device("cpu")
CONFIG = EncoderConfig.uniform(vocabulary=40, hidden=16, layers=2, heads=2, feed_forward=32, max_positions=24)
HEADS = {
    "classification": HeadConfig("classification", labels=3),
    "token_classification": HeadConfig("token_classification", labels=4),
    "question_answering": HeadConfig("question_answering"),
}
GPU_RUNTIMES: tuple[Any, ...] = ("onnxruntime-cuda", "onnxruntime-tensorrt")


def written(kind: str) -> bytes:
    return encode(Model(CONFIG, {"task": HEADS[kind]}).initialize(0).eval(), "task").SerializeToString()


def mixed_batch() -> Any:
    parts = build_fixed_batch(CONFIG, 3, 5)
    bounds = torch.tensor([0, 5, 8, 15])
    positions = torch.cat([torch.arange(int(n)) for n in bounds.diff()])
    return parts.__class__(parts.input_ids, parts.segment_ids, positions, bounds, 7, parts.row_ids)


@pytest.mark.parametrize("kind", HEADS)
def test_bound_memory_gives_the_answers_of_plain_arrays(kind: str) -> None:
    content = written(kind)
    bound = BoundSession(start_onnxruntime(content, 1), CPU, "here")
    plain, batch = OnnxSession(content, threads=1), mixed_batch()
    for name, value in plain.run(batch).items():
        np.testing.assert_array_equal(bound.run(batch)[name], value)
    needs = Needs(logits=True)
    logits, expected = bound(batch, needs).logits, plain(batch, needs).logits
    assert logits is not None
    assert expected is not None
    assert torch.equal(logits, expected)


class Runtime:
    """Stands for the package onnxruntime with these providers, of which `started` start."""

    def __init__(self, there: list[str], started: list[str]) -> None:
        self.given: list[Any] = []
        self._there, self._started = there, started
        self.SessionOptions = SimpleNamespace
        self.levels: list[int] = []

    def set_default_logger_severity(self, level: int) -> None:
        self.levels.append(level)

    def get_available_providers(self) -> list[str]:
        return self._there

    def InferenceSession(self, source: Any, options: Any, providers: list[Any]) -> Any:  # noqa: N802
        self.given.append(providers)
        print("*************** EP Error ***************")  # what it prints of a provider that does not start
        entry = SimpleNamespace(name="logits", shape=["batch", 2], type="tensor(float)")
        ids = SimpleNamespace(name="input_ids")
        return SimpleNamespace(
            disable_fallback=lambda: None,
            get_providers=lambda: self._started,
            get_inputs=lambda: [ids],
            get_outputs=lambda: [entry],
        )


BOTH = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(there: list[str], started: list[str]) -> Runtime:
        made = Runtime(there, started)
        monkeypatch.setitem(sys.modules, "onnxruntime", made)  # type: ignore[arg-type]
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 2000))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        return made

    return install


def test_what_onnxruntime_is_given(installed: Any) -> None:
    stub = installed(BOTH, BOTH)
    for runtime in GPU_RUNTIMES:
        session = open_on_gpu(b"file", runtime)
        assert session.device == torch.device("cuda", 0)
    cuda = {"device_id": "0", "gpu_mem_limit": "500", "arena_extend_strategy": "kSameAsRequested", "use_tf32": "1"}
    tensorrt = {"device_id": "0", "trt_max_workspace_size": "500", "trt_fp16_enable": "1"}
    assert stub.given == [
        [("CUDAExecutionProvider", cuda)],
        [("TensorrtExecutionProvider", tensorrt), ("CUDAExecutionProvider", cuda)],
    ]
    exact = dict(list_providers("onnxruntime-tensorrt", "fp32", 500))
    assert exact["TensorrtExecutionProvider"]["trt_fp16_enable"] == "0"
    assert exact["CUDAExecutionProvider"]["use_tf32"] == "0"
    assert [computed_in(name, "bf16") for name in GPU_RUNTIMES] == ["TF32", "fp16"]


@pytest.mark.parametrize(
    ("there", "started", "line"),
    [
        (["CPUExecutionProvider"], [], "this onnxruntime has no CUDAExecutionProvider: it has CPUExecutionProvider; "
         "pip uninstall onnxruntime, then pip install 'compress-bert[onnxruntime-gpu]'"),
        (BOTH, ["CPUExecutionProvider"], "CUDAExecutionProvider did not start: onnxruntime would use "
         "CPUExecutionProvider; install the libraries that it needs"),
    ],
)  # fmt: skip
def test_a_provider_that_is_missing_is_one_line(
    there: Any, started: Any, line: str, installed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = installed(there, started)
    with pytest.raises(UserError) as error:
        open_on_gpu(b"file", "onnxruntime-cuda")
    assert error.value.line().startswith(f"--runtime onnxruntime-cuda: {line}")
    assert not capsys.readouterr().out
    assert stub.levels in ([], [4, 2])
    assert error.value.code == ExitCode.ENVIRONMENT


def test_without_onnxruntime_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"--runtime onnxruntime-gpu: onnxruntime is not installed") as error:
        open_on_gpu(b"file", "onnxruntime-cuda")
    assert error.value.do == "pip install 'compress-bert[onnxruntime-gpu]'"


@pytest.mark.parametrize("runtime", GPU_RUNTIMES)
def test_a_cpu_is_rejected(runtime: Any) -> None:
    with pytest.raises(UserError, match=f"--runtime {runtime}: {runtime} only runs on a CUDA GPU; use --runtime onnx"):
        Predictor(Path("nowhere"), runtime=runtime)


def test_a_quantized_file_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / model_file.FILE).touch()
    record = {"precision": "int8 per-token", "sha256": "x", "model": "y", "head": "task"}
    (tmp_path / model_file.RECORD).write_text(json.dumps(record))
    monkeypatch.setattr(model_file, "file_digest", lambda path: "x")
    monkeypatch.setattr(model_file.modelfolder, "fingerprint", lambda path: "y")
    with pytest.raises(
        UserError, match=r"onnxruntime-cuda does not support quantized files: model.onnx is int8 per-tok"
    ):
        model_file.open_session(tmp_path, "onnxruntime-cuda")


def test_the_package_for_gpus_counts_as_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "onnxruntime-gpu":
            return "1.30"
        raise runtimes.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(runtimes.metadata, "version", version)
    monkeypatch.setattr(runtimes.util, "find_spec", lambda name: name == "onnxruntime" or None)
    found = runtimes.versions()
    assert {name for name, there in found.items() if there} == {"onnxruntime", *GPU_RUNTIMES}


def test_fit_serves_floats_from_the_file_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match="fit does not support the runtime openvino on this device; use one of torch, on"
    ):
        candidates("openvino", "cuda")
    with pytest.raises(UserError, match="fit does not support the runtime onnxruntime-cuda on this device; use one of"):
        candidates("onnxruntime-cuda", "cpu")
    assert candidates(None, "cuda") == ["torch"]
    monkeypatch.setattr("compress.fit.cost.serving.versions", lambda: dict.fromkeys(runtimes.RUNTIMES, "1"))
    assert candidates("onnxruntime-cuda", "cuda") == ["onnxruntime-cuda"]
    serving = Serving("onnxruntime-cuda", length=6)
    assert serving.writes
    assert (serving.bits, serving.table_bits) == ((32,), (32,))
    opened = []

    def open_here(source: bytes, runtime: str, *, precision: str) -> BoundSession:
        opened.append((runtime, precision))
        return BoundSession(start_onnxruntime(source, 1), CPU, "here")

    monkeypatch.setattr(gpu_session, "open_on_gpu", open_here)
    model = Model(CONFIG, {"task": HEADS["classification"]}).initialize(0).eval()
    (call,) = build_parts(model, serving)
    (logits,) = call().values()  # type: ignore[attr-defined]
    assert logits.shape == (1, 3)
    assert opened == [("onnxruntime-cuda", "fp32")]
    assert isinstance(open_runtime(written("classification"), serving), BoundSession)

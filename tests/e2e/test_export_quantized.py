"""The file of a quantized folder: written, checked, and what evaluation runs unasked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import e2e_toy as toy
from e2e_toy import Cli

from compress.commands import export as exporting
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.integers.convert import plan_quantization, quantize_model
from compress.errors import UserError
from compress.modelfolder.folder import load_model, save_model
from compress.onnx import writer as writing
from compress.onnx.check import Check
from compress.onnx.runtimes import versions

QUICK = ("--bootstrap", "100", "--threads", "1", "--json")


@pytest.fixture
def folder(taught: Path) -> Path:
    loaded = load_model(toy.TEACHER)
    model = quantize_model(loaded.model, plan_quantization(QuantizationSpec(scheme="per-token"), loaded.model)).eval()
    return save_model("small", model, tokenizer_files=loaded.tokenizer_files, meta=loaded.meta)


@pytest.mark.thorough
def test_the_file_of_a_quantized_folder_is_what_is_measured(folder: Path, compress: Cli) -> None:
    done = compress("export", folder, "--data", "data", "--output", "out", "--threads", "1")
    assert done.code == 0, done.err
    record = json.loads(Path("out/onnx.json").read_text())
    assert record["precision"] == "int8 per-token"
    assert record["check"]["error"] > 0
    assert Path("out/model.onnx").stat().st_size < 0.5 * Path("out/model.safetensors").stat().st_size

    done = compress("evaluate", "out", "--data", "data", *QUICK)
    assert done.code == 0, done.err
    model = json.loads(done.out)["models"][0]
    assert model["context"]["runtime"].startswith("onnxruntime ")
    assert model["context"]["precision"] == "int8 per-token"
    assert model["values"]["size/disk_mb"] == pytest.approx(Path("out/model.onnx").stat().st_size / 1e6)
    assert model["values"]["memory/weights_mb"] == model["values"]["size/disk_mb"], "not that of the floats behind it"
    assert model["values"]["fake_quantized/accuracy"] == pytest.approx(model["values"]["quality/accuracy"], abs=0.05)

    done = compress("evaluate", "out", "--data", "data", "--runtime", "torch", *QUICK)
    simulated = json.loads(done.out)["models"][0]
    assert simulated["values"]["fake_quantized/accuracy"] == model["values"]["fake_quantized/accuracy"]
    assert not [name for name in simulated["values"] if name.startswith(("quality/", "speed/latency"))]
    if versions()["openvino"]:
        done = compress("evaluate", "out", "--data", "data", "--runtime", "openvino", *QUICK)
        assert done.code == 0, done.err

    with Path("out/model.onnx").open("ab") as file:
        file.write(b" ")
    done = compress("predict", "out", "a text")  # it would run the file unasked
    assert (done.code, done.line) == (2, "error: out: model.onnx has changed since the export; export the model again")


def test_the_code_of_the_card_computes_with_the_integers(folder: Path, compress: Cli) -> None:
    pytest.importorskip("transformers")
    done = compress("export", folder, "--data", "data", "--output", "out", "--threads", "1")
    assert done.code == 0, done.err
    found: dict[str, Any] = {}
    for name in ("small", "out"):
        text = Path(name, "README.md").read_text(encoding="utf-8")
        (code,) = re.findall(r"```python\n(.*?)```", text.partition("## How to use")[2], flags=re.DOTALL)
        exec(code.replace("<this folder>", name).replace("a text", "a good film"), found)
    label = load_model("out").meta.label_names[int(found["outputs"][0].argmax())]
    assert found["answers"][0].label == label
    assert json.loads(compress("predict", "out", "a good film", "--json").out)["label"] == label


def test_what_the_writer_cannot_express_is_named_and_nothing_is_written(
    folder: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = exporting.modelfolder.load_model

    def gated(*args: Any, **how: Any) -> Any:
        loaded = load(*args, **how)
        if "compress-export-" not in str(args[0]):
            return loaded
        attention = loaded.model.get_submodule("encoder.layers.1.attention")
        attention.register_parameter("gate", torch.nn.Parameter(torch.ones(3)))
        return loaded

    monkeypatch.setattr(exporting.modelfolder, "load_model", gated)
    done = compress("export", folder, "--output", "new", "--threads", "1")
    assert (done.code, done.line) == (
        2,
        "error: encoder.layers.1.attention.gate: this model has parts that the ONNX writer does not support: "
        "nothing was written",
    )
    assert not Path("new").exists()


def test_a_file_that_random_tokens_refuse_is_to_be_checked_on_data(
    folder: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Check(rows=256, what="rows", difference=1.0, mean=0.2, largest=2.0, agreement=0.98, error=0.1)
    monkeypatch.setattr(writing, "compute_reference", lambda *_: SimpleNamespace(check=lambda _: wrong))
    done = compress("export", folder, "--output", "new", "--threads", "1")
    assert (
        "error: small: the ONNX file does not match the model: its outputs differ from the quantized model's"
        in done.err
    )
    assert "give representative rows with --data" in done.line
    done = compress("export", folder, "--data", "data", "--output", "new", "--threads", "1")
    assert "--data" not in done.line
    assert not Path("new").exists()


def test_a_file_that_answers_otherwise_is_refused(folder: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Check(rows=256, what="rows", difference=1.0, mean=0.2, largest=2.0, agreement=0.98, error=0.1)
    assert wrong.complaint == (
        "its outputs differ from the quantized model's by 2.0e-01 on average, and 98.0 % of its predictions agree; "
        "allowed: at most 5.0e-02 and at least 99.5 %"
    )
    monkeypatch.setattr(writing, "compute_reference", lambda *_: SimpleNamespace(check=lambda _: wrong))
    with pytest.raises(UserError, match="differ from the quantized model"):
        writing.write(load_model(folder), "task", [], "rows")

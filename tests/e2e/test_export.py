"""`compress export`, and the exported file as the runtime of evaluate, benchmark and predict."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import e2e_toy as toy
import numpy as np
from e2e_toy import Cli

from compress.modelfolder.folder import fingerprint, load_model
from compress.onnx.runtimes import IN_TORCH, versions
from compress.onnx.session import OnnxSession, pad_batch
from compress.predict.predictor import Predictor

FILE_RUNTIMES = [name for name, version in versions().items() if name not in IN_TORCH and version]
SHORT = ("--bootstrap", "100", "--threads", "1")


@pytest.fixture
def exported(taught: Path, compress: Cli) -> Path:
    done = compress("export", toy.TEACHER, "--data", "data", "--output", "out", "--threads", "1")
    assert done.code == 0, done.err
    assert "checked on" in done.out
    assert "agreement 100.0 %" in done.out
    assert "wrote out/model.onnx" in done.out
    return Path("out")


def test_a_folder_with_its_file_answers_alike_in_both_runtimes(exported: Path, compress: Cli) -> None:
    record = json.loads((exported / "onnx.json").read_text())
    assert record["model"] == fingerprint(exported) == fingerprint(toy.TEACHER)
    assert record["check"]["difference"] < 1e-4
    assert record["latency_ms"].keys() == {"torch_32", "onnxruntime_32"}
    note = "model.onnx: fp32, opset 17; checked on"
    assert any(line.startswith(note) for line in load_model(exported).meta.notes)

    found = {}
    for runtime in ("torch", *FILE_RUNTIMES):
        done = compress("evaluate", exported, "--data", "data", "--runtime", runtime, *SHORT, "--json")
        assert done.code == 0, done.err
        found[runtime] = json.loads(done.out)["models"][0]
    torch_ = found["torch"]["values"]
    assert torch_["size/disk_mb"] == pytest.approx((exported / "model.safetensors").stat().st_size / 1e6)
    for runtime in FILE_RUNTIMES:
        values, context = found[runtime]["values"], found[runtime]["context"]
        assert torch_["quality/accuracy"] == values["quality/accuracy"]
        assert values["size/disk_mb"] == pytest.approx((exported / "model.onnx").stat().st_size / 1e6)
        assert context["runtime"].startswith(f"{runtime} ")
        assert context["runtime"].endswith(", length buckets")
        assert context["precision"] == "fp32"

    texts = ["the film was good", "dull"]
    answers = [
        [
            json.loads(line)
            for line in compress("predict", exported, *texts, "--runtime", name, "--json").out.splitlines()
        ]
        for name in ("torch", *FILE_RUNTIMES)
    ]
    for left, *others in zip(*answers, strict=True):
        for right in others:
            assert left["label"] == right["label"]
            assert left["probabilities"] == pytest.approx(right["probabilities"], abs=1e-5)


@pytest.mark.thorough
def test_auto_times_what_is_there_and_takes_the_fastest(exported: Path, compress: Cli) -> None:
    done = compress("benchmark", exported, "--runtime", "auto", "--length", "16", "--repeats", "5", "--threads", "1")
    assert done.code == 0, done.err
    for name in ("torch", *FILE_RUNTIMES):
        assert f"{name}: " in done.err
    chosen = re.search(
        rf"runtime ([\w-]+): the fastest of {1 + len(FILE_RUNTIMES)} on this machine, 1 thread\n", done.err
    )
    assert chosen
    assert f"1 thread, {chosen[1]} " in done.out

    done = compress("predict", toy.TEACHER, "a text", "--runtime", "auto", "--threads", "1")
    assert done.code == 0, done.err
    assert "onnxruntime: skipped: no model.onnx" in done.err
    assert "runtime torch: the fastest" in done.err
    assert "torch: " in done.err


def test_what_the_file_needs_is_a_plain_tokenizer_and_onnxruntime(exported: Path) -> None:
    """As a service without this program reads it."""
    from tokenizers import Tokenizer

    runtime = pytest.importorskip("onnxruntime")
    encoded = Tokenizer.from_file(str(exported / "tokenizer.json")).encode("the film was good")
    session = runtime.InferenceSession(str(exported / "model.onnx"), providers=["CPUExecutionProvider"])
    feed = {
        "input_ids": [encoded.ids], "attention_mask": [encoded.attention_mask], "token_type_ids": [encoded.type_ids]
    }  # fmt: skip
    logits = session.run(["logits"], {name: np.asarray(value) for name, value in feed.items()})[0]
    examples = (own := Predictor(exported)).task.encode_texts(own.tokenizer, ["the film was good"], None, max_length=16)
    np.testing.assert_allclose(logits, own.logits(examples), atol=1e-5)


@pytest.mark.parametrize("head", ["mlm", "none"])
def test_other_heads(taught: Path, head: str, compress: Cli) -> None:
    done = compress("export", toy.PRETRAINED, "--head", head, "--output", "out", "--threads", "1")
    assert done.code == 0, done.err
    assert "checked on 256 rows of random tokens" in done.out
    outputs = OnnxSession(Path("out/model.onnx")).outputs
    assert outputs[0] == ("logits" if head == "mlm" else "last_hidden_state")
    refused = compress("predict", "out", "a text", "--runtime", "onnxruntime")
    assert refused.code == 2


def test_bad_input(exported: Path, compress: Cli) -> None:
    def refused(*args: str | Path, code: int = 2) -> str:
        done = compress(*args)
        assert done.code == code, done.err
        assert "Traceback" not in done.err
        return done.err

    assert "exists already" in refused("export", toy.TEACHER, "--output", "out", code=3)
    assert "an output folder is required" in refused("export", toy.TEACHER)
    assert "opset 9 is not supported" in refused("export", toy.TEACHER, "--output", "new", "--opset", "9")
    assert "the model has no 'pair' head" in refused("export", toy.TEACHER, "--output", "new", "--head", "pair")
    assert not Path("new").exists()
    onnx = ("--runtime", "onnxruntime")
    assert "no model.onnx" in refused("predict", toy.TEACHER, "a text", *onnx)
    half = ("--precision", "bf16")
    assert "uses the precision of the file" in refused("predict", exported, "a text", *onnx, *half)

    shutil.copytree(exported, "changed")
    with Path("changed/model.onnx").open("ab") as file:
        file.write(b"\0")
    assert "model.onnx has changed since the export" in refused("predict", "changed", "a text", *onnx)

    shutil.copytree(toy.TEACHER, "retrained")
    for name in ("model.onnx", "onnx.json"):
        shutil.copy(exported / name, Path("retrained") / name)
    record = json.loads(Path("retrained/onnx.json").read_text())
    Path("retrained/onnx.json").write_text(json.dumps(record | {"model": "0" * 64}))
    assert "the weights have changed since" in refused("predict", "retrained", "a text", *onnx)


def test_padding_is_told_apart() -> None:
    import torch

    from compress.contracts import Batch

    batch = Batch(
        input_ids=torch.tensor([5, 6, 7]),
        segment_ids=torch.tensor([0, 1, 0]),
        position_ids=torch.tensor([0, 1, 0]),
        cu_seqlens=torch.tensor([0, 2, 3]),
        max_length=2,
        row_ids=torch.tensor([0, 1]),
    )
    real, feed = pad_batch(batch)
    assert real.tolist() == [[True, True], [True, False]]
    assert {name: value.tolist() for name, value in feed.items()} == {
        "input_ids": [[5, 6], [7, 0]], "attention_mask": [[1, 1], [1, 0]], "token_type_ids": [[0, 1], [0, 0]]
    }  # fmt: skip
    whole = dataclasses.replace(batch, cu_seqlens=torch.tensor([0, 3]), max_length=3, row_ids=torch.tensor([0]))
    real, feed = pad_batch(whole)
    assert real.tolist() == feed["attention_mask"].astype(bool).tolist() == [[True] * 3]
    assert feed["input_ids"].tolist() == [[5, 6, 7]]

"""Ordinary programs open what we write, given the folder alone, and answer as it does.

Each runs in a process of its own: `peer.py` in the interpreter COMPRESS_PEER_PYTHON (this one where it is not set) and,
for the oldest onnxruntime, COMPRESS_OLD_RUNTIME_PYTHON; `peer.mjs` in node, with the packages that are installed in the
folder COMPRESS_NODE. What is not there is skipped; docs/howto/serving.md says what ran.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import torch
from peer import PACKAGES

from compress.commands.export import export_folder
from compress.contracts import RunOptions
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.schemes import QuantizationSpec
from compress.encoder.integers.convert import plan_quantization, quantize_model
from compress.encoder.modules.model import Model
from compress.encoder.modules.static import finish_static
from compress.modelfolder.families.model2vec import make_static_config
from compress.modelfolder.folder import FolderMeta, load_model, save_model
from compress.modelfolder.sentence_pooling import SentenceParts, part_files
from compress.onnx.writer import write_into
from compress.predict.embedder import Embedder
from compress.predict.predictor import Predictor

HERE = Path(__file__).parent
LONGEST = 12
TEXTS = ["the film was good", "dull", "a good , good film " * 9, "bad", "was the film bad ?", "dull film " * 8, "the"]
SHAPES = {"uneven": (LayerShape(2, 16, 40), LayerShape(1, 16, 24))}
ROUNDED = {
    "pattern": "encoder.layers.*",
    "weight": {"kind": "per_channel", "bits": 7},  # products of 8 bits overflow on processors without VNNI
    "input": {"kind": "per_token", "bits": 8},
}
FLIPPED = 2e-2
"""What a number may change an answer by that lies in the middle between two codes."""
Q8 = '{"dtype": "q8"}'
SECONDS = 240


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, toy_tokenizer_files: dict[str, bytes]) -> dict[str, Path]:
    """By kind: fine-tuned folders with their file, whose logits are of the size of 1."""
    made = {}
    for kind in ("float", "quantized", "uneven"):
        shapes = SHAPES.get(kind, (LayerShape(2, 16, 40),) * 2)
        rows = Tokenizer.from_files(toy_tokenizer_files).vocabulary_size
        config = EncoderConfig(vocabulary=rows, hidden=32, layers=shapes, max_positions=40, initializer_range=0.2)
        torch.manual_seed(0)
        model = Model(config, {"task": HeadConfig("classification", labels=3, style="bert")}).eval()
        if kind == "quantized":
            rules = QuantizationSpec.model_validate({"scheme": None, "rules": [ROUNDED]})
            model = quantize_model(model, plan_quantization(rules, model)).eval()
        meta = FolderMeta(family="bert", task="classification", label_names=("x", "y", "z"), max_length=LONGEST)
        folder = tmp_path_factory.mktemp(kind) / "model"
        save_model(folder, model, tokenizer_files=toy_tokenizer_files, meta=meta)
        predictor = Predictor(folder, runtime="torch")
        rows = predictor.task.encode_texts(predictor.tokenizer, TEXTS, None, max_length=LONGEST)
        write_into(folder, list(evaluation_batches(rows, 4096)), "rows")
        made[kind] = folder
    return made


@pytest.fixture(scope="module")
def embedder(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `export` makes of an embedder."""
    at = tmp_path_factory.mktemp("embedder")
    loaded = load_model(folders["float"], keep=())
    parts = SentenceParts("mean", (), normalize=True, max_length=LONGEST)
    meta = FolderMeta(family="bert")
    save_model(
        at / "made", loaded.model, tokenizer_files=loaded.tokenizer_files, meta=meta, beside=part_files(parts, 32)
    )
    options = dataclasses.replace(RunOptions(), output=at / "out", quiet=True)
    export_folder(str(at / "made"), None, None, "test", options)
    return at / "out"


@pytest.fixture(scope="module")
def static(toy_tokenizer_files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static model, stored in fp16."""
    rows = Tokenizer.from_files(toy_tokenizer_files).vocabulary_size
    torch.manual_seed(0)
    head = HeadConfig("embedding", labels=6, pooling="mean", normalize=True)
    model = Model(make_static_config(rows, 6), {"task": head})
    return save_model(
        tmp_path_factory.mktemp("static") / "model",
        finish_static(model),
        tokenizer_files=toy_tokenizer_files,
        meta=FolderMeta(task="embedding"),
    )


def expected(folder: Path) -> np.ndarray:
    """(texts, labels) logits that this program gives."""
    predictor = Predictor(folder, runtime="torch")
    rows = predictor.task.encode_texts(predictor.tokenizer, TEXTS, None, max_length=LONGEST)
    return predictor.logits(rows)


@cache
def has(python: str, client: str) -> bool:
    code = "import sys, importlib.metadata as m; [m.version(name) for name in sys.argv[1:]]"
    return subprocess.run([python, "-c", code, *PACKAGES[client]], capture_output=True, timeout=SECONDS).returncode == 0


def answers(client: str, folder: Path, at: Path, variable: str = "COMPRESS_PEER_PYTHON") -> np.ndarray:
    (rows,) = answers_of(client, [folder], at, variable)
    return rows


def answers_of(
    client: str, folders: Sequence[Path], at: Path, variable: str = "COMPRESS_PEER_PYTHON"
) -> list[np.ndarray]:
    """One process for all folders: some clients take seconds to import."""
    python = os.environ.get(variable, sys.executable)
    if not has(python, client):
        pytest.skip(f"{', '.join(PACKAGES[client])} not installed for {variable}")
    rows = said([python, str(HERE / "peer.py"), client, str(written(at)), *map(str, folders)])
    return [np.array(each) for each in rows]


def written(at: Path) -> Path:
    (at / "texts.json").write_text(json.dumps(TEXTS))
    return at / "texts.json"


def said(command: list[str]) -> Any:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])["rows"]


def close(found: np.ndarray, wanted: np.ndarray, kind: str = "float") -> None:
    assert np.abs(wanted).max() > 0.5
    np.testing.assert_allclose(found, wanted, atol=FLIPPED if kind == "quantized" else 1e-4, rtol=1e-3)
    assert np.median(np.abs(found - wanted)) < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["float", "quantized", "uneven"])
@pytest.mark.parametrize("client", ["optimum", "onnxruntime", "openvino"])
def test_programs_that_read_the_file(client: str, kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    close(answers(client, folders[kind], tmp_path), expected(folders[kind]), kind)


@pytest.mark.parametrize("kind", ["float", "quantized", "uneven"])
def test_the_oldest_onnxruntime(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    found = answers("onnxruntime", folders[kind], tmp_path, "COMPRESS_OLD_RUNTIME_PYTHON")
    close(found, expected(folders[kind]), kind)


@pytest.mark.thorough
def test_transformers_computes_with_the_floats(folders: dict[str, Path], tmp_path: Path) -> None:
    plain, found = answers_of("transformers", [folders["float"], folders["quantized"]], tmp_path)
    close(plain, expected(folders["float"]))
    close(found, expected(folders["float"]))
    assert np.abs(found - expected(folders["quantized"])).max() > 1e-3


def test_transformers_finds_no_weights_that_it_would_compute_otherwise_with(folders: dict[str, Path]) -> None:
    transformers = pytest.importorskip("transformers")
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        transformers.AutoModelForSequenceClassification.from_pretrained(folders["uneven"])


def node(task: str, folder: Path, at: Path, options: str = "{}") -> np.ndarray:
    modules, program = os.environ.get("COMPRESS_NODE", "."), shutil.which("node")
    if program is None or not Path(modules, "node_modules/@huggingface/transformers").is_dir():
        pytest.skip("no node, or no @huggingface/transformers in the folder COMPRESS_NODE")
    return np.array(said([program, str(HERE / "peer.mjs"), modules, task, str(folder), str(written(at)), options]))


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, "{}") for kind in ("float", "quantized", "uneven")), ("float", '{"subfolder": ""}'), ("quantized", Q8)],
)
def test_transformers_js(kind: str, options: str, folders: dict[str, Path], tmp_path: Path) -> None:
    found, wanted = node("task", folders[kind], tmp_path, options), expected(folders[kind])
    short = [i for i, text in enumerate(TEXTS) if len(text.split()) <= LONGEST - 2]
    assert len(short) == len(TEXTS) - 2
    close(found[short], wanted[short], kind)  # it cuts [SEP] off longer texts


@pytest.fixture(scope="module")
def encoded(embedder: Path, static: Path, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What sentence-transformers gives with the embedder and with the static model."""
    return answers_of("sentence_transformers", [embedder, static], tmp_path_factory.mktemp("encoded"))


def check_exported(found: np.ndarray, embedder: Path) -> None:
    wanted = Embedder(embedder)(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(wanted, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("client", ["sentence_transformers_onnx", "fastembed"])
def test_vectors_of_an_exported_embedder(client: str, embedder: Path, tmp_path: Path) -> None:
    check_exported(answers(client, embedder, tmp_path), embedder)


def test_vectors_of_an_exported_embedder_in_sentence_transformers(encoded: list[np.ndarray], embedder: Path) -> None:
    check_exported(encoded[0], embedder)


def test_vectors_of_a_static_model(static: Path, encoded: list[np.ndarray]) -> None:
    found = encoded[1]
    wanted = Embedder(static)(TEXTS)
    assert np.abs(wanted).max() > 0.5
    np.testing.assert_allclose(found, wanted, atol=1e-5)

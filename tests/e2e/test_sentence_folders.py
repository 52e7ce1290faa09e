"""Folders of sentence-transformers through the commands: pooling, normalization and prompts are in what they write."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from calibratable import make_overconfident
from e2e_toy import QUICK, Cli
from example_counts import thorough_but
from long_text import check_limits, limits
from safetensors.torch import load_file, save_file
from sentence_folders import TEXTS, as_sentence_transformers, check_carried, module_files, vectors

from compress.commands.export import export_folder, export_stock
from compress.commands.extend import extend_folder
from compress.contracts import RunOptions
from compress.modelfolder.folder import fingerprint, inspect, load_model, save_model
from compress.modelfolder.sentence_files import identity
from compress.onnx.session import OnnxSession
from compress.predict.embedder import Embedder
from compress.tracking import Store
from compress.tracking.download import download_model

HIDDEN = 16
RECIPE = f"data: {{max_length: 24}}\n{QUICK}"
STAGES = {
    "prune_layers": ("prune-layers", "--keep", "4", "--criterion", "uniform", "--no-recover"),
    "prune_width": ("prune-width", "--keep", "0.5", "--no-recover"),
    "prune_vocab": ("prune-vocab", "--size", "70", "--characters", "used"),
    "quantize": ("quantize", "--no-sensitivity", "--no-onnx"),
    "share": ("share", "--groups", "2", "--residual-rank", "2", "--embedding-size", "8", "--no-recover"),
    "factorize": ("factorize", "--keep", "0.5", "--no-recover"),
    "sparsify": ("sparsify", "--no-recover"),
    "finetune": ("finetune", "--set", "stages.0.training.steps=2", "--set", "stages.0.training.epochs=null"),
}


@pytest.fixture
def mine(own_model: Path) -> Path:
    """`mine`, a classifier of 6 layers, as sentence-transformers would write it."""
    return as_sentence_transformers(own_model, HIDDEN)


def command(name: str, words: tuple[str, ...], *more: str) -> tuple[str, ...]:
    kind, *flags = words
    Path("quick.yaml").write_text(f"extends: {name}\n{RECIPE}", encoding="utf-8")
    model = ("--model", "mine") if kind == "finetune" else ("mine",)
    return (kind, *model, "--recipe", "./quick.yaml", "--data", "data", "--threads", "1", *flags, *more)


# --- commands that keep the model -------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["none", "mlm", None])
def test_export_keeps_the_modules_for_every_head(head: str | None, mine: Path, compress: Cli) -> None:
    pytest.importorskip("onnxruntime")
    words = () if head is None else ("--head", head)
    done = compress("export", mine, *words, "--output", "out", "--threads", "1")
    assert done.code == 0, done.err
    check_carried(Path("out"), mine)
    outputs = OnnxSession(Path("out/model.onnx")).outputs
    assert ("last_hidden_state" in outputs) == (head == "none")


@pytest.mark.parametrize("kind", ["hf", "openvino"])
def test_export_to_other_programs(kind: str, mine: Path, compress: Cli) -> None:
    if kind == "openvino":
        pytest.importorskip("openvino")
    done = compress("export", mine, "--to", kind, "--output", "out", "--threads", "1")
    assert done.code == 0, done.err
    check_carried(Path("out"), mine)


@pytest.mark.store
@pytest.mark.thorough
def test_pyfunc_and_the_registry_hold_the_folder_as_it_is(
    mine: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = compress("export", mine, "--to", "pyfunc", "--output", "served", "--threads", "1")
    assert done.code == 0, done.err
    check_carried(Path("served/artifacts/mine"), mine)
    store = Store(f"sqlite:///{Path('mlruns/mlflow.db').absolute()}")
    done = compress("promote", mine, "--as", "champion", "--name", "toy")
    assert done.code == 0, done.err
    check_carried(download_model("models:/toy@champion", store.uri), mine)

    # The same weights, with another pooling, are another model.
    other = as_sentence_transformers(Path(shutil.copytree(mine, "other")), HIDDEN, pooling="mean")
    assert (fingerprint(other) == fingerprint(mine), identity(other) == identity(mine)) == (True, False)
    done = compress("promote", other, "--as", "champion", "--name", "toy", "--replace")
    assert done.code == 0, done.err
    check_carried(download_model("models:/toy@champion", store.uri), other)


def test_extend_reads_longer_texts_into_the_same_vectors(mine: Path, compress: Cli) -> None:
    done = compress("extend", mine, "--max-positions", "200", "--output", "long")
    assert done.code == 0, done.err
    assert limits("long") == {"tokenizer_config.json": 200, "sentence_bert_config.json": 200}
    check_limits("long")
    made, source = module_files(Path("long")), module_files(mine)
    settings = json.loads(made.pop("sentence_bert_config.json"))
    assert settings == json.loads(source.pop("sentence_bert_config.json")) | {"max_seq_length": 200}
    assert made == source
    np.testing.assert_allclose(vectors(Path("long"), TEXTS), vectors(mine, TEXTS), atol=1e-5)


def test_calibrate(mine: Path, compress: Cli) -> None:
    make_overconfident(mine, Path("three-of-four"))
    done = compress("calibrate", mine, "--data", "three-of-four", "--output", "calibrated")
    assert done.code == 0, done.err
    check_carried(Path("calibrated"), mine)


def test_a_saved_embedder_keeps_the_prompts(mine: Path, compress: Cli) -> None:
    done = compress("analyze", mine, "--data", "data", "--save-embedder", "even", "--threads", "1", "--rows", "64")
    assert done.code == 0, done.err
    name = "config_sentence_transformers.json"
    assert Path("even", name).read_bytes() == (mine / name).read_bytes()


# --- stages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", thorough_but(["prune_width"], STAGES))
def test_a_stage_keeps_the_modules(name: str, mine: Path, compress: Cli) -> None:
    recipe = STAGES[name][0]
    done = compress(*command(recipe, STAGES[name], "--output", "runs/made"))
    assert done.code == 0, done.err
    (made,) = (Path(line.split()[1]) for line in done.out.splitlines() if line.startswith("model "))
    check_carried(made, mine, same_model=False)
    for folder in Path("runs/made/stages").glob("*/model"):
        check_carried(folder, mine, same_model=False)


@pytest.mark.slow
def test_students_and_models_within_a_budget(mine: Path, compress: Cli) -> None:
    done = compress(
        "distill",
        "--recipe",
        "./task.yaml",
        "--teacher",
        "mine",
        "--data",
        "data",
        "--threads",
        "1",
        "--output",
        "runs/s",
    )
    assert done.code == 0, done.err
    check_carried(Path("runs/s/student"), mine, same_model=False)
    pytest.importorskip("onnxruntime")
    size = inspect(mine).disk_mb
    done = compress(
        "fit", "mine", "--data", "data", "--max-length", "24", "--max-mb", str(0.5 * size), "--uncertified", "--output",
        "runs/fit", "--threads", "1",
    )  # fmt: skip
    assert done.code == 0, done.err
    check_carried(Path("runs/fit/model"), mine, same_model=False)


def test_an_embedder_becomes_a_classifier_by_fine_tuning(own_model: Path, compress: Cli) -> None:
    loaded = load_model(own_model, keep=())
    shutil.rmtree(own_model)
    save_model(own_model, loaded.model, tokenizer_files=loaded.tokenizer_files)
    mine = as_sentence_transformers(own_model, HIDDEN)
    assert inspect(mine).heads["task"].kind == "embedding"
    done = compress(*command("finetune", STAGES["finetune"], "--output", "runs/made"))
    assert done.code == 0, done.err
    (made,) = (Path(line.split()[1]) for line in done.out.splitlines() if line.startswith("model "))
    assert inspect(made).heads["task"].kind == "classification"
    assert not module_files(made), "sentence-transformers would load it as an embedding model"


def test_a_narrower_model_pools_its_own_width(mine: Path, compress: Cli) -> None:
    words = command("prune-width", ("prune-width", "--hidden-size", "8", "--no-recover"), "--output", "runs/narrow")
    done = compress(*words)
    assert done.code == 0, done.err
    made = Path("runs/narrow/student") if Path("runs/narrow/student").is_dir() else Path("runs/narrow/model")
    assert inspect(made).config.hidden == 8
    found = vectors(made, TEXTS)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(Embedder(made)(TEXTS), found, atol=1e-5)


def test_what_cannot_be_carried_over_is_rejected_before_any_work(mine: Path, compress: Cli) -> None:
    shutil.rmtree(mine / "1_Pooling")
    as_sentence_transformers(mine, HIDDEN, dense=6)
    words = command("prune-width", ("prune-width", "--hidden-size", "8", "--no-recover"), "--output", "runs/narrow")
    done = compress(*words)
    assert (done.code, done.line) == (
        2,
        "error: mine/2_Dense: module Dense does not fit the new model: it reads vectors of 16, and the new hidden "
        "states have 8; keep the hidden size; to compress the encoder alone, remove modules.json from a copy of the "
        "folder",
    )
    assert not Path("runs/narrow").exists()
    done = compress(*command("prune-vocab", STAGES["prune_vocab"], "--output", "runs/small"))
    assert done.code == 0, done.err
    check_carried(Path("runs/small/model"), mine, same_model=False)

    (mine / "2_Dense" / "model.safetensors").rename(mine / "2_Dense" / "pytorch_model.bin")
    for words in (
        ("extend", "mine", "--max-positions", "200", "--output", "x"),
        ("export", "mine", "--to", "hf", "--output", "x"),
        ("export", "mine", "--head", "none", "--output", "x"),
        ("calibrate", "mine", "--data", "data", "--output", "x"),
        command("prune-vocab", STAGES["prune_vocab"], "--output", "x"),
    ):
        done = compress(*words)
        assert done.code == 2, words
        assert done.line.startswith("error: mine/2_Dense: pytorch_model.bin cannot be carried over: "), words
        assert not Path("x").exists()


# --- a real model -----------------------------------------------------------------------------------------------


@pytest.fixture
def one_layer_minilm(minilm: Path, tmp_path: Path) -> Path:
    """all-MiniLM-L6-v2 with the first of its six layers: the files are those of the checkpoint."""
    folder = shutil.copytree(minilm, tmp_path / "minilm")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    weights = load_file(folder / "model.safetensors")
    first = {name: w for name, w in weights.items() if not re.search(r"\.layer\.[1-9]", name)}
    assert len(first) < len(weights)
    save_file(first, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.thorough
def test_minilm(one_layer_minilm: Path, tmp_path: Path) -> None:
    """Mean pooling and vectors of length 1."""
    minilm = one_layer_minilm
    options = RunOptions(quiet=True)
    made = []
    pytest.importorskip("onnxruntime")
    made.append(tmp_path / "onnx")
    export_folder(str(minilm), "none", None, "test", dataclasses.replace(options, output=made[-1]))
    made.append(tmp_path / "hf")
    export_stock(str(minilm), "test", dataclasses.replace(options, output=made[-1]))
    for folder in made:
        check_carried(folder, minilm)
        assert limits(folder) == {"tokenizer_config.json": 256, "sentence_bert_config.json": 256}
    long = tmp_path / "long"
    extend_folder(str(minilm), 1024, None, None, dataclasses.replace(options, output=long))
    assert limits(long) == {"tokenizer_config.json": 1024, "sentence_bert_config.json": 1024}
    np.testing.assert_allclose(vectors(long, TEXTS), vectors(minilm, TEXTS), atol=1e-5)

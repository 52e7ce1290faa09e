"""A tiny classifier in a folder, rows that fit it, and a working folder with an empty MLflow store of its own."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from haste import do_not_wait_for_quiet

import compress
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import FolderMeta, save_model
from compress.tracking import Store
from compress.tracking.store import silence

Rows = list[dict[str, str]]
Splits = dict[str, Rows]


@pytest.fixture(scope="session")
def splits() -> Splits:
    """Opinions in words of the toy vocabulary: 48 rows to train on, 16 and 24 to measure."""
    parts = ("the", "a"), ("film", "plot", "actor"), ("was", "was not", "was never", "was very"), ("good", "bad")
    speakers = ("", "i think ", "he said ", "she said ")
    rows = [
        {"text": f"{who}{' '.join(words)}", "label": "positive" if words[-1] == "good" else "negative"}
        for words, who in itertools.product(itertools.product(*parts), speakers)
    ]
    rows = rows[::7] + [row for place, row in enumerate(rows) if place % 7]
    return {"train": rows[:48], "validation": rows[48:64], "test": rows[64:88]}


@pytest.fixture(scope="session")
def _classifier(
    tmp_path_factory: pytest.TempPathFactory, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]
) -> Path:
    config = EncoderConfig.uniform(
        vocabulary=len(toy_vocabulary), hidden=32, layers=4, heads=4, feed_forward=48, max_positions=32
    )
    head = HeadConfig("classification", labels=2)
    model = Model(config, {head.name: head}).initialize(0)
    meta = FolderMeta(task="classification", label_names=("negative", "positive"), max_length=24)
    folder = tmp_path_factory.mktemp("classifier") / "classifier"
    save_model(folder, model, tokenizer_files=toy_tokenizer_files, meta=meta)
    return folder


@pytest.fixture(scope="session")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "mlruns"
    folder.mkdir()
    silence()
    Store(f"sqlite:///{folder / 'mlflow.db'}").client()
    return folder


@pytest.fixture
def place(tmp_path: Path, _store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with one thread and a cache of its own."""
    silence()
    do_not_wait_for_quiet(monkeypatch)
    shutil.copytree(_store, tmp_path / "mlruns")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(before)


@pytest.fixture
def classifier(place: Path, _classifier: Path) -> compress.Model:
    """Four layers of width 32 with random weights, in the working folder."""
    shutil.copytree(_classifier, place / "classifier")
    return compress.load("classifier", device="cpu")

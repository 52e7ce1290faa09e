"""Everything through the real command line, at toy scale; what is costly to make is made once and copied."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import e2e_toy as toy
import pytest
import torch
from e2e_toy import Cli, Done, River, Server
from haste import check_files_in_onnxruntime_alone, do_not_wait_for_quiet
from wordpiece import make_wordpiece_files

from compress.cli.main import main
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import FolderMeta, save_model
from compress.tracking import Store
from compress.tracking.store import silence
from compress.training import length


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """mlflow's and sqlalchemy's own warnings are named in `silence`; pytest resets the filters before each test."""
    silence()
    for name in ("MLFLOW_TRACKING_URI", "COMPRESS_FAULT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, steps in toy.SHORT_LENGTH.items():
        monkeypatch.setattr(length, name, steps)


@pytest.fixture(autouse=True)
def short_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for speed_up in (do_not_wait_for_quiet, check_files_in_onnxruntime_alone):
        speed_up(monkeypatch)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store without runs."""
    folder = tmp_path_factory.mktemp("store") / "mlruns"
    folder.mkdir()
    silence()
    Store(f"sqlite:///{folder / 'mlflow.db'}").client()
    return folder


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A working folder as every test finds it: data, corpus, recipes, an empty store. Not to be changed."""
    folder = tmp_path_factory.mktemp("ground")
    toy.write_data(folder / "data")
    toy.write_pairs(folder / "pairs")
    toy.write_corpus(folder / "corpus.txt")
    (folder / "task.yaml").write_text(toy.TASK, encoding="utf-8")
    shutil.copytree(empty_store, folder / "mlruns")
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as environment:  # not the cache of whoever runs the tests
        environment.setenv("COMPRESS_CACHE", str(tmp_path_factory.mktemp("cache")))
        running = Server()
    yield running
    running.close()


@pytest.fixture(scope="session")
def made(ground: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the toy teacher was made by its recipe. Not to be changed."""
    folder = tmp_path_factory.mktemp("made") / "work"
    shutil.copytree(ground, folder)
    done = server.run(folder, "run", "smoke-teacher", *toy.DATA, "--output", "runs/teacher", sends=True)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="session")
def river(ground: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> River:
    """`compress distill --recipe smoke`, twice. Not to be changed."""
    folder = tmp_path_factory.mktemp("river") / "work"
    shutil.copytree(ground, folder)
    first = server.run(folder, *toy.SMOKE, sends=True)
    assert first.code == 0, first.err
    second = server.run(folder, *toy.SMOKE, "--json", sends=True)
    assert second.code == 0, second.err
    return River(folder, first, second)


@pytest.fixture
def work(ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This test's working folder."""
    return _enter(ground, tmp_path, monkeypatch)


@pytest.fixture
def taught(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This test's working folder, in which there is a teacher."""
    return _enter(made, tmp_path, monkeypatch)


def _enter(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    toy.copy_folder(source, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def toy_vocabulary(toy_vocabulary: list[str]) -> list[str]:
    """With all words of the toy data: letter by letter, its texts would be of sixteen lengths, and attention computes
    each length of a batch by itself."""
    return list(dict.fromkeys([*toy_vocabulary, *toy.list_words()]))


@pytest.fixture(scope="session")
def toy_tokenizer_files(toy_vocabulary: list[str]) -> dict[str, bytes]:
    return make_wordpiece_files(toy_vocabulary)


@pytest.fixture(scope="session")
def own_models(
    tmp_path_factory: pytest.TempPathFactory, toy_tokenizer_files: dict[str, bytes], toy_vocabulary: list[str]
) -> Path:
    """`mine` and `other`, made once and copied. Not to be changed."""
    folder, size = tmp_path_factory.mktemp("own"), len(toy_vocabulary)
    _own(folder / "mine", toy_tokenizer_files, size, 6, ("negative", "positive"), 3)
    _own(folder / "other", toy_tokenizer_files, size, 3, ("positive", "negative"), 4)
    return folder


@pytest.fixture
def own_model(work: Path, own_models: Path) -> Path:
    """A model folder of one's own, `mine`: six layers, for the toy data's labels."""
    return shutil.copytree(own_models / "mine", work / "mine")


@pytest.fixture
def other_model(work: Path, own_models: Path) -> Path:
    """Another one of one's own, `other`: shallower, and its labels in another order."""
    return shutil.copytree(own_models / "other", work / "other")


def _own(folder: Path, tokenizer: dict[str, bytes], size: int, layers: int, labels: tuple[str, ...], seed: int) -> Path:
    config = EncoderConfig.uniform(
        vocabulary=size, hidden=16, layers=layers, heads=2, feed_forward=32, max_positions=128
    )
    heads = {"mlm": HeadConfig("masked_lm"), "task": HeadConfig("classification", labels=len(labels))}
    made = Model(config, heads).initialize(seed)
    meta = FolderMeta(task="classification", label_names=labels)
    return save_model(folder, made, tokenizer_files=tokenizer, meta=meta)


@pytest.fixture
def compress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command in this process: `compress("distill", "--recipe", …)`."""

    def run(*args: str | Path) -> Done:
        words = [str(arg) for arg in args]
        monkeypatch.setattr(sys, "argv", ["compress", *words])
        capsys.readouterr()
        code = main(words)
        said = capsys.readouterr()
        return Done(int(code), said.out, said.err)

    return run


os.environ.setdefault("OMP_NUM_THREADS", "1")

"""Models of an MLflow server that hands files over itself: promoted, registered, read by name, kept in the cache."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_scripts import ForkedScripts
from tracking_tools import Opener, Seen

from compress.cli.main import main
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.resolve import resolve
from compress.predict.predictor import Predictor
from compress.tracking import Store, server
from compress.tracking.server import run_server

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("mlflow server")]
TEXTS = ("good bad good", "the film was not bad", "bad")

Maker = Callable[[str, int], Path]


@pytest.fixture(scope="module")
def served(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `mlflow server` as it is usually started: clients send it files and get them from it."""
    folder = tmp_path_factory.mktemp("served")
    store = Store(f"sqlite:///{shutil.copy(template, folder / 'mlflow.db')}")
    usual = server._command

    def command(store: Store, host: str, port: int, mark: str) -> list[str]:
        words = usual(store, host, port, mark)
        at = words.index("--default-artifact-root")
        return [*words[:at], "--artifacts-destination", str(folder / "artifacts")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_command", command)
        with run_server(store, "127.0.0.1", None) as running:
            yield running.address


@pytest.fixture
def remote(served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", served)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    return Store(served)


@pytest.fixture
def made(tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]) -> Maker:
    """Writes small classifiers; those with different seeds differ in their weights only."""

    def make(name: str, seed: int) -> Path:
        model = Model(tiny_config, {"task": HeadConfig(kind="classification", labels=2)}).initialize(seed).eval()
        meta = modelfolder.FolderMeta(task="classification", label_names=("bad", "good"))
        return modelfolder.save_model(tmp_path / name, model, tokenizer_files=toy_tokenizer_files, meta=meta)

    return make


def _call(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def _predicted(name: object, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    capsys.readouterr()
    _call("predict", name, *TEXTS, "--json")
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def _expected(folder: Path) -> list[dict[str, object]]:
    found = zip(TEXTS, Predictor(folder).predict(list(TEXTS)), strict=True)
    return [{"text": text, **answer.as_json()} for text, answer in found]


def _entries(tmp_path: Path, name: str) -> list[Path]:
    return sorted(p for p in (tmp_path / "cache" / "models" / "registered" / name).iterdir() if p.is_dir())


def test_an_alias_that_moves_takes_its_model_with_it(
    made: Maker, remote: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = made("first", 1), made("second", 2)
    assert _expected(first) != _expected(second)
    _call("promote", first, "--as", "champion", "--name", "opinions", "--max-mb", "5")
    assert _predicted("models:/opinions@champion", capsys) == _expected(first)
    _call("promote", second, "--as", "champion", "--name", "opinions", "--replace")
    assert _predicted("models:/opinions@champion", capsys) == _expected(second)
    assert _predicted("models:/opinions/1", capsys) == _expected(first)
    _call("promote", "models:/opinions/1", "--as", "champion", "--name", "opinions", "--replace")
    assert _predicted("models:/opinions@champion", capsys) == _expected(first)

    client = remote.client()
    versions = client.search_model_versions("name = 'opinions'")
    assert sorted(str(v.version) for v in versions) == ["1", "2"], "one model is one version"
    found = client.get_model_version_by_alias("opinions", "champion")
    logged = client.get_logged_model(found.source.removeprefix("models:/"))
    assert logged.artifact_location.startswith("mlflow-artifacts:/")
    assert json.loads(logged.tags["mlflow.modelVersions"]) == [{"name": "opinions", "version": 1}]

    entries = _entries(tmp_path, "opinions")
    assert [entry.name.partition("-")[0] for entry in entries] == ["1", "2"], "a copy for each version"
    assert stat.S_IMODE((tmp_path / "cache" / "models").stat().st_mode) == 0o700


def test_the_store_of_the_flag_is_the_one_of_the_name(
    made: Maker, remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir(tmp_path)
    flag = ("--tracking-uri", remote.uri)
    _call("promote", made("student", 1), "--as", "champion", "--name", "flagged", *flag)
    told = f"MLFLOW_TRACKING_URI={remote.uri} compress predict models:/flagged@champion"
    assert told in capsys.readouterr().out
    _call("promote", "models:/flagged@champion", "--as", "stable", "--name", "flagged", *flag)
    assert remote.client().get_model_version_by_alias("flagged", "stable").version == "1"
    assert not (tmp_path / "mlruns").exists(), "no other store was asked"


def test_a_version_deleted_and_registered_again_is_another_one(
    made: Maker, remote: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        folder = made(f"seed{seed}", seed)
        _call("promote", folder, "--as", "champion", "--name", "again")
        assert _predicted("models:/again/1", capsys) == _expected(folder)
        remote.client().delete_registered_model("again")


def test_a_run_registers_its_model(
    made: Maker, opened: Opener, remote: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run = opened("run", store=remote, experiment="registering")
    first, second = made("run/model", 1), made("run/other", 2)
    for key, folder in (("m", first), ("o", second)):
        run.register(run.model(folder, name=key, model_type="distill"), "registered", alias=f"of-{key}")
    ending = run.finish(seconds=120)
    assert ending.left == 0
    for key, folder in (("m", first), ("o", second)):
        assert _predicted(f"models:/registered@of-{key}", capsys) == _expected(folder)
        assert _predicted(f"runs:/{ending.run_id}/{key}", capsys) == _expected(folder)
    (logged,) = [m for m in _models(remote, "registering") if m.name == "m"]
    assert _predicted(f"models:/{logged.model_id}", capsys) == _expected(first)


def test_the_name_of_a_run_may_hold_a_slash(made: Maker, opened: Opener, remote: Store) -> None:
    folders = {name: made(f"{name}/model", seed) for seed, name in enumerate(("mine", "mine/control"))}
    for name, folder in folders.items():
        run = opened(name, store=remote, experiment="named")
        run.model(folder, name="m", model_type="distill")
        assert run.finish(seconds=120).left == 0
    for name, folder in {**folders, "mine/m": folders["mine"]}.items():
        assert modelfolder.fingerprint(resolve(f"runs:/{name}")) == modelfolder.fingerprint(folder)


def test_files_of_a_run_may_change_under_their_name(made: Maker, opened: Opener, remote: Store) -> None:
    run_id = opened("run", store=remote, experiment="files").finish(seconds=60).run_id
    assert run_id is not None
    client = remote.client()
    for seed in (1, 2):
        folder = made(f"seed{seed}", seed)
        client.log_artifacts(run_id, str(folder), "export")
        for name in (run_id, run_id[:8]):
            assert modelfolder.fingerprint(resolve(f"runs:/{name}/export")) == modelfolder.fingerprint(folder)


def test_a_copy_that_is_not_whole_is_not_read(
    made: Maker, remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from compress.tracking import download

    folder = made("student", 1)
    _call("promote", folder, "--as", "champion", "--name", "torn")
    real = download.download

    def torn(uri: str, target: Path, tracking_uri: str) -> Path:
        place = real(uri, target, tracking_uri)
        (target / "model.safetensors").unlink()
        raise OSError(f"the line was cut after {place}")

    with monkeypatch.context() as patch:
        patch.setattr(download, "download", torn)
        assert main(["predict", "models:/torn@champion", "good"]) == 2
    assert _entries(tmp_path, "torn") == [], "nothing half-written"
    assert _predicted("models:/torn@champion", capsys) == _expected(folder)
    (entry,) = _entries(tmp_path, "torn")
    other = made("other", 2)
    shutil.copy(other / "model.safetensors", entry / "torn-1" / "model.safetensors")
    assert _predicted("models:/torn@champion", capsys) == _expected(folder), "other weights under the same name"


_BOTH = """
import os, sys

import compress.predict.predictor
from compress.cli.main import main

os.chdir(sys.argv[1])
children = []
for name in ("first", "second"):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), 1)
        code = main(sys.argv[2:])
        sys.stdout.flush()
        os._exit(code)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [0, 0], codes
"""


def test_two_processes_at_once(made: Maker, remote: Store, scripts: ForkedScripts, tmp_path: Path) -> None:
    folder = made("student", 1)
    _call("promote", folder, "--as", "champion", "--name", "both")
    environment = {name: os.environ[name] for name in ("MLFLOW_TRACKING_URI", "COMPRESS_CACHE")}
    words = ("predict", "models:/both@champion", *TEXTS, "--json")
    done = scripts.run(_BOTH, tmp_path, *words, **environment)
    assert done.code == 0, done.err
    for name in ("first", "second"):
        answers = (tmp_path / name).read_text().splitlines()
        assert [json.loads(line) for line in answers] == _expected(folder)
    assert len(_entries(tmp_path, "both")) == 1


@pytest.mark.parametrize("name", ["models:/nobody@champion", "models:/nobody/1", "runs:/" + "0" * 32 + "/model"])
def test_a_name_that_the_server_does_not_know(name: str, remote: Store) -> None:
    with pytest.raises(UserError, match=f"the store has no model '{name}'"):
        resolve(name)


def test_an_alias_that_the_model_lacks(made: Maker, remote: Store) -> None:
    _call("promote", made("student", 1), "--as", "champion", "--name", "few")
    with pytest.raises(UserError, match="model 'few' has no alias 'champoin'; did you mean 'champion'"):
        resolve("models:/few@champoin")
    with pytest.raises(UserError, match="no run 'nobody' in"):
        resolve("runs:/nobody/model")


def _models(store: Store, experiment: str) -> list:
    found = Seen(store).client.get_experiment_by_name(experiment)
    assert found is not None
    return list(store.client().search_logged_models([found.experiment_id]))

"""A model gets an alias when it meets its gates; what is served answers as the model does."""

from __future__ import annotations

import dataclasses
import json
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import requests
from tracking_tools import Opener, Seen

from compress.cli.main import main
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder import cascade as cascades
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.cascade import Stage
from compress.modelfolder.meta import DataNote, MeasurementNote, is_cascade
from compress.predict.predictor import Predictor
from compress.predict.service import Service
from compress.storage import atomic
from compress.tracking import Store, download, files
from compress.tracking.download import download_model
from compress.tracking.listing import list_runs
from compress.tracking.pyfunc import requirements, write_pyfunc
from compress.tracking.registering import holder
from evaluation.cost.device import describe

Maker = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes]) -> Maker:
    """Writes small classifiers with figures."""

    def make(
        name: str, *, seed: int = 0, accuracy: float = 0.9, drop: float = 0.004, ms: float = 2.0, busy: str = "no"
    ) -> Path:
        model = Model(tiny_config, {"task": HeadConfig(kind="classification", labels=2)}).initialize(seed).eval()
        difference = "vs_teacher/accuracy_difference"
        values = {"quality/accuracy": accuracy, "size/disk_mb": 3.0, "speed/latency_p50_ms": ms}
        values |= {difference: -drop, f"{difference}_low": -drop - 0.01, f"{difference}_high": -drop + 0.01}
        context = {"metric": "accuracy", "dataset": "opinions/test", "dataset_digest": "abc", "threads": "1"}
        context |= {"device": describe("cpu")["device"], "device_kind": "cpu", "contaminated": busy}
        meta = modelfolder.FolderMeta(
            task="classification",
            label_names=("bad", "good"),
            measurement=MeasurementNote(values=values, context=context),
            data=DataNote(name="embedded:opinions", fingerprint="abc"),
        )
        return modelfolder.save_model(tmp_path / name, model, tokenizer_files=toy_tokenizer_files, meta=meta)

    return make


def _promote(store: Store, *words: object) -> int:
    return main(["promote", *map(str, words), "--tracking-uri", store.uri])


def test_a_folder_becomes_a_version_with_card_figures_and_alias(
    made: Maker, store: Store, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made("student")
    assert _promote(store, folder, "--as", "champion", "--max-drop", "1", "--max-mb", "5", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["version"], told["changed"]) == ("opinions", "1", True)
    version = seen.client.get_model_version_by_alias("opinions", "champion")
    assert version.description.startswith("An encoder of 2 layers")
    assert version.tags["quality/accuracy"] == "0.9"
    assert "drop of accuracy 0.4 [-0.60, 1.40] within the limit of 1 point" in version.tags["compress.gates"]
    (run,) = seen.runs("compress")
    model = seen.client.get_logged_model(run.outputs.model_outputs[0].model_id)
    assert {m.key: m.dataset_name for m in model.metrics}["quality/accuracy"] == "opinions/test"
    found = download_model("models:/opinions@champion", store.uri)
    assert modelfolder.fingerprint(found) == modelfolder.fingerprint(folder)

    assert _promote(store, folder, "--as", "champion") == 0
    assert "is already version 1 of 'opinions' with alias champion" in capsys.readouterr().out
    assert _promote(store, folder, "--as", "stable") == 0
    assert 'compress predict models:/opinions@stable "some text"' in capsys.readouterr().out
    assert len(seen.client.search_model_versions("name = 'opinions'")) == 1, "one model is one version"


@pytest.mark.parametrize("copied", [False, True])
def test_a_promoted_cascade_answers_with_all_its_models(
    made: Maker, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """`models:/…` once meant the first model folder with a config, which is the small model of a cascade."""
    stages = [Stage(name="a", folder="stage-1", threshold=0.9), Stage(name="b", folder="stage-2")]
    folder, meta = tmp_path / "both", modelfolder.inspect(made("a", seed=1)).meta
    with atomic.new_folder(folder) as temp:
        cascades.fill(temp, stages, [tmp_path / "a", made("b", seed=2)], meta)
        cascades.describe(temp, meta, "both", [])
    if copied:  # as of a server
        monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(download, "local_path", lambda _: None)
    assert _promote(store, folder, "--as", "champion") == 0
    (listed,) = list_runs(store)
    assert (listed.name, listed.metric, listed.metrics["quality/accuracy"]) == ("both", "accuracy", 0.9)
    assert listed.params["student.layers"] == "2", "an axis of the page's charts: a run without it is left out"
    found = download_model("models:/opinions@champion", store.uri)
    assert is_cascade(found)
    assert modelfolder.fingerprint(found) == modelfolder.fingerprint(folder)
    assert {p.name for p in (found / "stage-2").iterdir()} == {p.name for p in (folder / "stage-2").iterdir()}


def test_a_model_whose_files_the_store_refuses_gets_no_alias(
    made: Maker, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        answer = requests.Response()
        answer.status_code = 413
        raise requests.HTTPError("413 Request Entity Too Large", response=answer)

    folder = made("student")
    with monkeypatch.context() as patch:
        patch.setattr(files, "_send", refuse)
        assert _promote(store, folder, "--as", "champion") == 6
    assert "the store rejected the files of the model" in capsys.readouterr().err
    assert holder(store, "opinions", "champion") is None
    assert _promote(store, folder, "--as", "champion") == 0


def test_an_alias_that_is_taken_is_told_and_moved_on_request(
    made: Maker, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = made("first"), made("second", seed=1)
    assert _promote(store, first, "--as", "champion") == 0
    assert _promote(store, second, "--as", "champion") == 3
    said = capsys.readouterr().err
    assert "error: --as champion: version 1 of 'opinions' already has this alias: accuracy 90.00 %, " in said
    assert "add --replace to move it" in said
    assert _promote(store, second, "--as", "champion", "--replace", "--dry-run") == 0
    assert "would register" in capsys.readouterr().out
    held = holder(store, "opinions", "champion")
    assert held is not None
    assert held.number == "1"
    assert _promote(store, second, "--as", "champion", "--replace") == 0
    held = holder(store, "opinions", "champion")
    assert held is not None
    assert held.fingerprint == modelfolder.fingerprint(second)


def test_a_copy_lies_in_a_folder_of_the_users_own_and_follows_its_alias(
    made: Maker, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "local_path", lambda _: None)  # as of a server
    name, found = "models:/opinions@champion", []
    for seed in (1, 2):
        folder = made(f"seed{seed}", seed=seed)
        assert _promote(store, folder, "--as", "champion", "--replace") == 0
        found.append(download_model(name, store.uri))
        assert modelfolder.fingerprint(found[-1]) == modelfolder.fingerprint(folder)
    assert download_model("models:/opinions/1", store.uri) == found[0] != found[1]
    place = tmp_path / "cache" / "models" / "registered" / "opinions"
    for folder in (place, place.parent, place.parent.parent):
        assert found[0].is_relative_to(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError) as caught:
        download_model(name, store.uri)
    assert caught.value.line().startswith(f"{place}: is not a folder that belongs to you; set COMPRESS_CACHE")
    assert caught.value.code == 6


def test_the_model_of_a_run_is_not_logged_again(made: Maker, opened: Opener, store: Store, seen: Seen) -> None:
    folder = made("run/model")
    run = opened("run")
    run.model(folder, name="m", model_type="distill", params={"fingerprint": modelfolder.fingerprint(folder)})
    run_id = run.finish().run_id
    assert _promote(store, folder, "--as", "champion", "--name", "toy") == 0
    assert seen.client.get_model_version("toy", "1").run_id == run_id
    assert seen.runs("compress") == []


def test_a_latency_of_a_busy_machine_passes_no_gate(
    made: Maker, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made("student", ms=0.01, busy="yes")
    assert _promote(store, folder, "--as", "fast", "--max-ms", "5") == 2
    said = capsys.readouterr().err
    assert (
        f"--max-ms, {folder}: the latency is unknown: other programs used the processor while it was measured" in said
    )
    assert "add --data DATA to measure it again" in said
    assert _promote(store, folder, "--as", "small", "--max-mb", "5") == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max-mb", "2"], "the model does not pass the gates: {model}: size on disk 3 over the limit of 2 MB"),
        (
            ["--max-ms", "1.5", "--max-mb", "5"],
            "latency p50 2 ms (, , 1 thread) over the limit of 1.5 ms; size on disk 3 within",
        ),
        (
            ["--max-drop", "1", "--sure"],
            "upper bound of the drop of accuracy 1.4 [-0.60, 1.40] over the limit of 1 point",
        ),
        (["--as", "v3"], "--as: 'v3' is not allowed as an alias"),
        (["--against", "."], "--against: needs --data: the comparison is measured on labelled rows; add --data DATA"),
        (["--sure"], "--sure: has no effect without --max-drop or --max-gap; add --max-drop or --max-gap POINTS"),
    ],
)
def test_gates_and_words_that_are_refused(
    made: Maker, store: Store, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    folder = made("student")
    assert _promote(store, folder, "--as", "champion", *flags) in (2, 3)
    assert words.format(model=folder) in capsys.readouterr().err
    assert holder(store, "opinions", "champion") is None


def test_of_several_the_best_that_fits_or_the_nearest_is_told(
    made: Maker, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = made("slow", seed=1, accuracy=0.95, ms=4.0)
    good, fast = made("good", seed=2, accuracy=0.92, ms=2.0), made("fast", seed=3, accuracy=0.8, ms=1.0)
    assert _promote(store, slow, good, fast, "--as", "champion", "--max-ms", "3") == 0
    held = holder(store, "opinions", "champion")
    assert held is not None
    assert held.fingerprint == modelfolder.fingerprint(good)
    capsys.readouterr()
    assert _promote(store, slow, good, "--as", "other", "--max-ms", "1") == 3
    assert f"none of 2 models passes the gates: the closest is {good}: latency p50 2 ms" in capsys.readouterr().err


def test_figures_that_are_not_known_are_asked_for(
    made: Maker, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made("student")
    meta = modelfolder.inspect(folder).meta
    assert meta.measurement is not None
    elsewhere = {**meta.measurement.context, "device": "another processor"}
    moved = meta.measurement.model_copy
    modelfolder.annotate(folder, meta.model_copy(update={"measurement": moved(update={"context": elsewhere})}))
    assert _promote(store, folder, "--as", "champion", "--max-ms", "5") == 2
    assert "was measured on another processor: this machine has" in capsys.readouterr().err
    modelfolder.annotate(folder, meta.model_copy(update={"measurement": None}))
    for flag, asks in (("--max-ms", "add --data DATA"), ("--max-drop", "add --data DATA --against TEACHER")):
        assert _promote(store, folder, "--as", "champion", flag, "5") == 2
        assert f"has not been measured; measure it: {asks}" in capsys.readouterr().err
    assert _promote(store, folder, "--as", "champion", "--max-mb", "5", "--dry-run") == 0


# --- serving ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::Warning")  # what MLflow says of its own code
def test_mlflow_loads_what_is_promoted(made: Maker, store: Store, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    import pandas as pd

    folder = made("student")
    # As an earlier version registered it: the promotion completes that very version.
    assert _promote(store, folder, "--as", "champion", "--no-pyfunc", "--name", "toy") == 0
    before = download_model("models:/toy@champion", store.uri)
    assert not (before / "MLmodel").exists()
    assert _promote(store, folder, "--as", "champion", "--name", "toy") == 0
    assert _promote(store, folder, "--as", "again", "--name", "toy") == 0
    assert [v.version for v in seen.client.search_model_versions("name = 'toy'")] == [1]
    place = download_model("models:/toy@champion", store.uri)
    assert place == before, "the files of the model are not copied"
    assert str(folder.parent) not in (place / "MLmodel").read_text(), "no path of this machine"
    assert not list(place.rglob("*.pkl"))
    assert modelfolder.fingerprint(place) == modelfolder.fingerprint(folder)
    assert not atomic.verify_folder(place)

    texts = ["good bad good", "bad"]
    expected = [a.as_json() for a in Predictor(folder).predict(texts)]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    loaded = mlflow.pyfunc.load_model("models:/toy@champion")
    found = loaded.predict(pd.DataFrame({"text": texts}))
    assert [f["label"] for f in found] == [e["label"] for e in expected]
    ours = [list(e["probabilities"].values()) for e in expected]
    np.testing.assert_allclose([list(f["probabilities"].values()) for f in found], ours, atol=1e-6)
    assert loaded.predict(loaded.input_example)[0]["label"] in {"bad", "good"}, "the example that MLflow's page shows"
    # Of any other exception MLflow's server sends the traceback, and no message.
    with pytest.raises(mlflow.MlflowException, match="row 1: text 'text' is empty") as caught:
        loaded.predict(pd.DataFrame({"text": ["good", None]}))
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"


def test_an_environment_has_the_runtime_of_every_model_of_a_cascade(tmp_path: Path) -> None:
    def named() -> set[str]:
        return {line.partition("==")[0] for line in requirements(tmp_path)}

    (tmp_path / "stage-2").mkdir()
    assert "onnxruntime" not in named()
    (tmp_path / "stage-2" / "model.onnx").touch()
    assert {"onnx", "onnxruntime"} <= named()


def test_a_damaged_onnx_file_is_not_published(
    made: Maker, tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made("student")
    (folder / "model.onnx").write_bytes(b"cut off")
    (folder / "onnx.json").write_text(json.dumps({"sha256": "0" * 64}))
    complaint = f"{folder}: model.onnx has changed since the export; export the model again"
    assert _promote(store, folder, "--as", "champion") == 2
    assert complaint in capsys.readouterr().err
    assert main(["export", str(folder), "--to", "pyfunc", "--output", str(tmp_path / "served")]) == 2
    assert main(["push", str(folder), "hf:some/where"]) == 2
    assert capsys.readouterr().err.count(complaint) == 2
    assert not (tmp_path / "served").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "certificate.json"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_folder_with_a_changed_file_is_not_published(
    made: Maker, tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str], name: str, joined: bool
) -> None:
    """Changed weights once became a champion that nobody could load."""
    folder, meta = made("student"), modelfolder.inspect(made("other", seed=1)).meta
    modelfolder.annotate(folder, meta, beside={"certificate.json": b"{}"})
    if joined:
        stages = [Stage(name="a", folder="stage-1", threshold=0.9), Stage(name="b", folder="stage-2")]
        with atomic.new_folder(tmp_path / "both") as temp:
            cascades.fill(temp, stages, [tmp_path / "other", folder], meta)
            cascades.describe(temp, meta, "both", [])
            atomic.write_bytes(temp / "certificate.json", b"{}")
        folder, name = tmp_path / "both", name if name == "certificate.json" else f"stage-2/{name}"
    (folder / "README.md").write_text("# My own page")
    file = folder / name
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if name.endswith("safetensors") else data + b" ")
    assert _promote(store, folder, "--as", "champion") == 2
    assert main(["push", str(folder), "hf:some/where"]) == 2
    assert capsys.readouterr().err.count(f"{folder}: {name} has changed since it was written") == 2


def test_a_pyfunc_folder_is_not_written_over(made: Maker, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("x")
    with pytest.raises(UserError, match="exists already"):
        write_pyfunc(made("student"), tmp_path / "there", [("text", True)])


def test_rows_of_a_service(made: Maker) -> None:
    service = Service(made("student"))
    assert service.answer(["good", "bad"]) == service.answer([{"text": "good"}, {"sentence": "bad", "text_pair": None}])
    with pytest.raises(UserError, match="row 1: text 'text' is missing; did you mean 'txt'"):
        service.answer([{"text": "good"}, {"txt": "bad"}])
    with pytest.raises(UserError, match="row 0: 'text' is a list, not a text; give one text for each row"):
        service.answer([{"text": ["good", "bad"]}])
    with pytest.raises(UserError, match="row 0: text 'text' is empty"):
        service.answer([{"text": float("nan")}])
    with pytest.raises(UserError, match="row 1: text 'sentence' is empty"):
        service.answer(["good", {"sentence": " "}])
    with pytest.raises(UserError, match="row 0: expected a text, or a row with named texts"):
        service.answer([7])


def test_export_to_the_stock_class_and_jsonl_in_and_out(
    made: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    folder, out = made("student"), tmp_path / "hf"
    assert main(["export", str(folder), "--to", "hf", "--output", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["class"] == "BertForSequenceClassification"
    assert told["check"]["agreement"] == 1.0
    assert main(["export", str(folder), "--to", "hf", "--head", "task", "--output", str(tmp_path / "x")]) == 2
    assert "--head: only applies to ONNX export; remove it or use --to onnx" in capsys.readouterr().err
    (tmp_path / "rows.jsonl").write_text('{"id": 7, "text": "good"}\n\n{"text": "bad"}\n')
    assert main(["predict", str(out), "--file", str(tmp_path / "rows.jsonl"), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row.get("id"), row["text"]) for row in rows] == [(7, "good"), (None, "bad")]


def test_a_model_that_no_stock_class_computes_is_refused_with_the_reason(
    tmp_path: Path, tiny_config: EncoderConfig, toy_tokenizer_files: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    first, *rest = tiny_config.layers
    uneven = dataclasses.replace(tiny_config, layers=(dataclasses.replace(first, feed_forward=8), *rest))
    model = Model(uneven, {"task": HeadConfig(kind="classification", labels=2)})
    modelfolder.save_model(tmp_path / "uneven", model, tokenizer_files=toy_tokenizer_files)
    assert main(["export", str(tmp_path / "uneven"), "--to", "hf", "--output", str(tmp_path / "x")]) == 2
    assert "no class of transformers computes this model: its layers differ in shape" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()

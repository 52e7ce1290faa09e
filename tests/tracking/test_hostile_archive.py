"""Archives that somebody made by hand: each wrong value ends in one line, exit code 2, and an untouched store."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tracking_tools import Seen

from compress.cli.main import main
from compress.errors import UserError
from compress.storage import manifest
from compress.tracking import Store
from compress.tracking.archive import export_runs
from compress.tracking.archivecheck import DEEPEST
from compress.tracking.importing import STATE_TAG, import_runs

VIEW = "mlflow.sharedViewState.compress-x"
GONE = object()
DEEP = "[" * 100 + "]" * 100


class Raw(str):
    """JSON as it is written, for values that Python's writer refuses or changes."""


class Archive:
    """An archive of two runs and a model below `folder`, whose files a test changes. run, model: their ids."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = json.loads((folder / "archive.json").read_text())
        self.run, self.other = index["runs"]
        (self.model,) = json.loads((folder / "runs" / f"{self.run}.json").read_text())["models"]

    @property
    def files(self) -> dict[str, Path]:
        named = {"index": "archive.json", "run": f"runs/{self.run}.json", "other": f"runs/{self.other}.json"}
        named |= {"model": f"models/{self.model}.json", "artifact": f"runs/{self.run}/plot.svg"}
        return {key: self.folder / name for key, name in named.items()}

    def change(self, file: str, path: tuple[Any, ...], value: Any) -> None:
        """Set what stands at a path of keys in one of the JSON files; GONE removes it."""
        content: Any = json.loads(self.files[file].read_text())
        if path:
            below = content
            for key in path[:-1]:
                below = below[key]
            if value is GONE:
                del below[path[-1]]
            else:
                below[path[-1]] = "RAW" if isinstance(value, Raw) else value
        elif not isinstance(value, Raw):
            content = value
        text = json.dumps(content)
        if isinstance(value, Raw):
            text = text.replace('"RAW"', value) if path else str(value)
        self.files[file].write_text(text)

    def sign(self) -> None:
        """A manifest that fits the files."""
        (self.folder / manifest.NAME).unlink(missing_ok=True)
        plain = {name: manifest._hash(self.folder / name) for name in manifest.files_below(self.folder)}
        (self.folder / manifest.NAME).write_bytes(manifest.encode(plain))


@pytest.fixture(scope="module")
def made(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param

    folder = tmp_path_factory.mktemp("hostile")
    store = Store(f"sqlite:///{shutil.copy(template, folder / 'mlflow.db')}")
    client = store.client()
    experiment = client.create_experiment("toy", store.artifact_location("toy"), {VIEW: '{"createdAt": 1}'})
    above = ""
    for name in ("first", "second"):
        tags = {"compress.key": name} | ({"mlflow.parentRunId": above} if above else {})
        run = client.create_run(experiment, start_time=1000 + len(above), run_name=name, tags=tags)
        above = key = run.info.run_id
        client.log_batch(key, [Metric("quality/accuracy", 0.5, 5, 1)], [Param("rate", "0.1")])
        client.log_inputs(key, [DatasetInput(Dataset("reviews", "0123", "local", "{}"), [InputTag("split", "test")])])
        artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
        artifacts.mkdir(parents=True)
        (artifacts / "plot.svg").write_text("<svg/>")
        if name == "first":
            model = client.create_logged_model(experiment, "m", key, {"a": "b"}, {"c": "d"}, "distill")
            Path(model.artifact_location.removeprefix("file://")).mkdir(parents=True)
            client.finalize_logged_model(model.model_id, "READY")
            client.log_outputs(key, [LoggedModelOutput(model.model_id, step=0)])
            of = {"model_id": model.model_id, "dataset_name": "reviews", "dataset_digest": "0123"}
            client.log_batch(key, [Metric("size/mb", 1.0, 5, 0, **of)])
        client.set_terminated(key, end_time=9000)
    export_runs(store, (), None, folder / "archive")
    return folder / "archive"


@pytest.fixture
def archive(made: Path, tmp_path: Path) -> Archive:
    return Archive(Path(shutil.copytree(made, tmp_path / "archive")))


@pytest.fixture
def rejected(archive: Archive, store: Store, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Imports the archive, which must fail in one line and leave the store as it is; returns the line."""
    assert store.database is not None
    database = store.database

    def call() -> str:
        before = database.read_bytes()
        code = main(["runs", "import", str(archive.folder), "--tracking-uri", store.uri])
        lines = capsys.readouterr().err.splitlines()
        assert code == 2, lines
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        assert lines[0].isprintable()
        assert database.read_bytes() == before
        assert not (database.parent / "artifacts").exists()
        return lines[0]

    return call


def test_the_archive_is_good_as_it_is(archive: Archive, store: Store) -> None:
    archive.sign()
    assert [one.why_not for one in import_runs(store, archive.folder)] == ["", ""]
    assert {run.info.status for run in Seen(store).runs()} == {"FINISHED"}


WRONG = [
    # the index
    ("index", (), Raw("[]"), "archive.json: not a JSON object"),
    ("index", (), Raw(""), "archive.json: the file is empty"),
    ("index", (), Raw("{"), "archive.json:1:2: not valid JSON"),
    ("index", (), Raw('{"runs": [], "runs": []}'), "archive.json:1:14: duplicate key 'runs'"),
    ("index", (), Raw('{"runs": ' + DEEP + "}"), "archive.json: nested too deeply"),
    ("index", (), Raw('{"runs": ' + "[" * 100_000 + "]" * 100_000 + "}"), "archive.json: nested too deeply"),
    ("index", ("format",), "zip", "format: Input should be 'compress-runs'"),
    ("index", ("version",), 2, "the archive was written by a newer version: its format version is 2"),
    ("index", ("version",), 10**30, "the archive was written by a newer version"),
    ("index", ("version",), 0, "version: Input should be greater than or equal to 1"),
    ("index", ("version",), True, "version: Input should be a valid integer"),
    ("index", ("version",), "1", "version: Input should be a valid integer"),
    ("index", ("store",), None, "store: Input should be a valid string"),
    ("index", ("runs",), GONE, "runs: Field required"),
    ("index", ("runs",), {}, "runs: Input should be a valid list"),
    ("index", ("runs", 0), 7, "runs.0: Input should be a valid string"),
    ("index", ("runs", 0), "", "runs.0: String should match pattern"),
    ("index", ("runs", 0), "../../secret", "runs.0: String should match pattern"),
    ("index", ("runs", 0), "/etc/passwd", "runs.0: String should match pattern"),
    ("index", ("runs", 0), "-rf", "runs.0: String should match pattern"),
    ("index", ("runs", 0), "a\n", "runs.0: String should match pattern"),
    ("index", ("runs", 0), "a" * 65, "runs.0: String should match pattern"),
    ("index", ("runs", 0), "nobody", "runs/nobody.json: no such file"),
    ("index", ("more",), 1, "more: Extra inputs are not permitted"),
    ("index", ("experiments",), [], "experiments: Input should be a valid dictionary"),
    ("index", ("experiments", ""), {}, "experiments..[key]: a name has at least one character"),
    ("index", ("experiments", "other"), {}, "experiments.other: no run is in this experiment"),
    ("index", ("experiments", "toy", "mlflow.note.content"), "x", "mlflow.note.content is not a saved view"),
    ("index", ("experiments", "toy", VIEW), "x" * 20_001, "String should have at most 20000 characters"),
    ("index", ("experiments", "toy", VIEW), 5, "Input should be a valid string"),
    # a run
    ("run", (), Raw("null"), "not a JSON object"),
    ("run", ("id",), "other", "id: found 'other', but the name of the file is"),
    ("run", ("name",), GONE, "name: Field required"),
    ("run", ("name",), "", "name: a name has at least one character"),
    ("run", ("name",), " ", "name: a name has at least one character"),
    ("run", ("name",), "\x1b[2J", "name: a name has at least one character, and no control characters"),
    ("run", ("name",), "x" * 8001, "name: String should have at most 8000 characters"),
    ("run", ("name",), Raw('"\\ud800"'), ": a string contains a lone surrogate"),
    ("run", ("name",), "another", "tags: the tag mlflow.runName is not the name of the run"),
    ("run", ("experiment",), "", "experiment: a name has at least one character"),
    ("run", ("experiment",), "x" * 501, "experiment: String should have at most 500 characters"),
    ("run", ("experiment",), None, "experiment: Input should be a valid string"),
    ("run", ("status",), "DONE", "status: String should match pattern"),
    ("run", ("status",), "FINISHED\n", "status: String should match pattern"),
    ("run", ("status",), None, "status: Input should be a valid string"),
    ("run", ("start_time",), "1000", "start_time: Input should be a valid integer"),
    ("run", ("start_time",), 1000.0, "start_time: Input should be a valid integer"),
    ("run", ("start_time",), True, "start_time: Input should be a valid integer"),
    ("run", ("start_time",), -1, "start_time: Input should be greater than or equal to 1"),
    ("run", ("start_time",), 0, "start_time: Input should be greater than or equal to 1"),
    ("run", ("start_time",), 2**63, "start_time: Input should be less than or equal to"),
    ("run", ("start_time",), 10**400, "start_time: Input should be less than or equal to"),
    ("run", ("start_time",), Raw("9" * 5000), "not readable JSON"),
    ("run", ("start_time",), Raw("NaN"), "NaN is not a valid number"),
    ("run", ("end_time",), 999, "end_time: a run cannot end before it starts"),
    ("run", ("end_time",), [], "end_time: Input should be a valid integer"),
    ("run", ("tags",), [], "tags: Input should be a valid dictionary"),
    ("run", ("tags", ""), "x", "tags..[key]: a key holds"),
    ("run", ("tags", "a`b"), "x", "tags.a`b.[key]: a key holds"),
    ("run", ("tags", "a\n"), "x", "a key holds"),
    ("run", ("tags", "../x"), "x", "tags.../x.[key]: a key must not read as another path"),
    ("run", ("tags", "x" * 251), "x", "String should have at most 250 characters"),
    ("run", ("tags", "note"), "x" * 8001, "tags.note: String should have at most 8000 characters"),
    ("run", ("tags", "note"), None, "tags.note: Input should be a valid string"),
    ("run", ("tags", "note"), "a\0b", "tags.note: a text has no NUL character"),
    ("run", ("params", "rate"), 0.1, "params.rate: Input should be a valid string"),
    ("run", ("params", "rate"), "x" * 6001, "params.rate: String should have at most 6000 characters"),
    ("run", ("params", "/rate"), "x", "params./rate.[key]: a key must not read as another path"),
    ("run", ("params",), None, "params: Input should be a valid dictionary"),
    ("run", ("metrics",), {}, "metrics: Input should be a valid list"),
    ("run", ("metrics", 0), [], "metrics.0.0: Field required"),
    ("run", ("metrics", 0), ["a", 1.0, 5, 1, 1], "metrics.0: Tuple should have at most 4 items"),
    ("run", ("metrics", 0), "abcd", "metrics.0: Input should be a valid tuple"),
    ("run", ("metrics", 0, 0), "", "metrics.0.0: a key holds"),
    ("run", ("metrics", 0, 0), 5, "metrics.0.0: Input should be a valid string"),
    ("run", ("metrics", 0, 1), "0.5", "metrics.0.1: Input should be a valid number"),
    ("run", ("metrics", 0, 1), True, "metrics.0.1: Input should be a valid number"),
    ("run", ("metrics", 0, 1), None, "metrics.0.1: Input should be a valid number"),
    ("run", ("metrics", 0, 1), Raw("NaN"), "NaN is not a valid number"),
    ("run", ("metrics", 0, 1), Raw("-Infinity"), "-Infinity is not a valid number"),
    ("run", ("metrics", 0, 1), Raw("1e999"), "1e999 is not a valid number"),
    ("run", ("metrics", 0, 1), 10**400, "metrics.0.1: Input should be"),
    ("run", ("metrics", 0, 2), -1, "metrics.0.2: Input should be greater than or equal to 0"),
    ("run", ("metrics", 0, 2), 1.5, "metrics.0.2: Input should be a valid integer"),
    ("run", ("metrics", 0, 2), 2**63, "metrics.0.2: Input should be less than or equal to"),
    ("run", ("metrics", 0, 3), 2**63, "metrics.0.3: Input should be less than"),
    ("run", ("metrics", 0, 3), -(2**63) - 1, "metrics.0.3: Input should be greater than"),
    ("run", ("metrics", 0, 3), "1", "metrics.0.3: Input should be a valid integer"),
    ("run", ("datasets", 0, "name"), "", "datasets.0.name: a name has at least one character"),
    ("run", ("datasets", 0, "name"), "x" * 501, "datasets.0.name: String should have at most 500 characters"),
    ("run", ("datasets", 0, "digest"), "x" * 37, "datasets.0.digest: String should have at most 36 characters"),
    ("run", ("datasets", 0, "digest"), None, "datasets.0.digest: Input should be a valid string"),
    ("run", ("datasets", 0, "source"), "x" * 65_536, "datasets.0.source: String should have at most 65535"),
    ("run", ("datasets", 0, "tags", "split"), "x" * 501, "datasets.0.tags.split: String should have at most 500"),
    ("run", ("datasets", 0, "tags"), [], "datasets.0.tags: Input should be a valid dictionary"),
    ("run", ("datasets", 0), 5, "datasets.0: Input should be a valid dictionary"),
    ("run", ("models",), "m", "models: Input should be a valid list"),
    ("run", ("models", 0), "../m", "models.0: String should match pattern"),
    ("run", ("models", 0), "m-nothing", "models/m-nothing.json: no such file"),
    ("run", ("models",), [], "a file that belongs to none of the runs in archive.json"),
    ("run", ("more",), 1, "more: Extra inputs are not permitted"),
    # a model
    ("model", ("id",), "other", "id: found 'other', but the name of the file is"),
    ("model", ("name",), "", "name: a name has at least one character"),
    ("model", ("name",), "a/b", "name: the name of a model has none of"),
    ("model", ("name",), 5, "name: Input should be a valid string"),
    ("model", ("model_type",), 5, "model_type: Input should be a valid string"),
    ("model", ("model_type",), "x" * 8001, "model_type: String should have at most 8000 characters"),
    ("model", ("tags", "a`b"), "x", "tags.a`b.[key]: a key holds"),
    ("model", ("params", "c"), ["d"], "params.c: Input should be a valid string"),
    ("model", ("metrics", 0, 1), "1", "metrics.0.1: Input should be a valid number"),
    ("model", ("metrics", 0, 4), "x" * 501, "metrics.0.4: String should have at most 500 characters"),
    ("model", ("metrics", 0, 5), None, "metrics.0: a data set has a name and a digest"),
    ("model", ("metrics", 0, 4), 5, "metrics.0.4: Input should be a valid string"),
]


@pytest.mark.parametrize(
    ("file", "path", "value", "expected"), WRONG, ids=[f"{i}-{row[0]}" for i, row in enumerate(WRONG)]
)
def test_a_wrong_value_is_named(archive: Archive, rejected, file: str, path: tuple, value: Any, expected: str) -> None:
    archive.change(file, path, value)
    archive.sign()
    line = rejected()
    assert expected in line
    assert str(archive.folder) in line


def test_a_run_that_is_listed_twice(archive: Archive, rejected) -> None:
    archive.change("index", ("runs",), [archive.run, archive.other, archive.run])
    archive.sign()
    assert f"archive.json: not the format of an archive: runs: {archive.run} is listed twice" in rejected()


def test_a_model_that_is_listed_twice(archive: Archive, rejected) -> None:
    archive.change("run", ("models",), [archive.model, archive.model])
    archive.sign()
    assert f"models: {archive.model} is listed twice" in rejected()


@pytest.mark.parametrize("tag", ["mlflow.parentRunId", "compress.parent_run"])
def test_runs_below_themselves(archive: Archive, rejected, tag: str) -> None:
    archive.change("run", ("tags", tag), archive.run)
    archive.sign()
    assert "runs: runs of the archive are below themselves" in rejected()
    archive.change("run", ("tags", tag), archive.other)
    archive.sign()
    assert "runs: runs of the archive are below themselves" in rejected()


def _link(archive: Archive, tmp_path: Path) -> str:
    archive.files["artifact"].unlink()
    archive.files["artifact"].symlink_to("/etc/passwd")
    archive.sign()
    return "plot.svg: the archive contains what is neither a file nor a folder: it is a symbolic link"


def _linked_json(archive: Archive, tmp_path: Path) -> str:
    shutil.move(archive.files["run"], tmp_path / "elsewhere.json")
    archive.files["run"].symlink_to(tmp_path / "elsewhere.json")
    return ".json: the archive contains what is neither a file nor a folder: it is a symbolic link"


def _linked_folder(archive: Archive, tmp_path: Path) -> str:
    shutil.move(archive.files["artifact"].parent, tmp_path / "elsewhere")
    archive.files["artifact"].parent.symlink_to(tmp_path / "elsewhere")
    return f"{archive.run}: the archive contains what is neither a file nor a folder: it is a symbolic link"


def _link_to_nothing(archive: Archive, tmp_path: Path) -> str:
    (archive.folder / "runs" / "loop").symlink_to("loop")
    return "loop: the archive contains what is neither a file nor a folder"


def _hard_link(archive: Archive, tmp_path: Path) -> str:
    os.link(archive.files["artifact"], tmp_path / "second")
    archive.sign()
    return "plot.svg: the archive contains a hard link: the file has 2 names"


def _pipe(archive: Archive, tmp_path: Path) -> str:
    archive.files["artifact"].unlink()
    os.mkfifo(archive.files["artifact"])
    return "it is a pipe"


def _pipe_as_manifest(archive: Archive, tmp_path: Path) -> str:
    (archive.folder / manifest.NAME).unlink()
    os.mkfifo(archive.folder / manifest.NAME)
    return "it is a pipe"


def _folder_as_index(archive: Archive, tmp_path: Path) -> str:
    archive.files["index"].unlink()
    archive.files["index"].mkdir()
    return "the archive is damaged: archive.json"


def _control_characters(archive: Archive, tmp_path: Path) -> str:
    archive.files["artifact"].rename(archive.files["artifact"].with_name("a\x1b[2J\nb"))
    return "a file with control characters in its name"


def _not_utf8(archive: Archive, tmp_path: Path) -> str:
    os.rename(archive.files["artifact"], os.fsencode(archive.files["artifact"].parent) + b"/\xff")
    return "a file with control characters in its name"


def _nested(archive: Archive, tmp_path: Path) -> str:
    (archive.files["artifact"].parent / Path(*"d" * (DEEPEST + 5))).mkdir(parents=True)
    return "the folders of the archive are nested too deeply"


def _stranger(archive: Archive, tmp_path: Path) -> str:
    (archive.folder / "runs" / "stranger.json").write_text("{}")
    archive.sign()
    return "stranger.json: the archive contains a file that belongs to none of the runs in archive.json"


def _stray(archive: Archive, tmp_path: Path) -> str:
    (archive.folder / "payload").write_text("x")
    archive.sign()
    return "payload: the archive contains a file that belongs to none of the runs in archive.json"


def _manifest(archive: Archive, **change: Any) -> str:
    path = archive.folder / manifest.NAME
    content = json.loads(path.read_text())
    content["files"] |= change.get("files", {})
    content |= {key: value for key, value in change.items() if key != "files"}
    content["files"] = dict(sorted(content["files"].items()))
    path.write_text(json.dumps(content, indent=1) + "\n")
    return "the archive is damaged"


RECORD = {"sha256": "0" * 64, "size": 1}


@pytest.mark.parametrize(
    "harm",
    [
        _link, _linked_json, _linked_folder, _link_to_nothing, _hard_link, _pipe, _pipe_as_manifest, _folder_as_index,
        _control_characters, _not_utf8, _nested, _stranger, _stray,
    ],
)  # fmt: skip
def test_only_plain_files_that_belong_to_the_archive(archive: Archive, rejected, tmp_path: Path, harm) -> None:
    expected = harm(archive, tmp_path)
    assert expected in rejected()


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"runs/missing.json": RECORD}},
        {"files": {"../outside": RECORD}},
        {"files": {"/etc/passwd": RECORD}},
        {"files": {"runs/../../outside": RECORD}},
        {"files": {"runs/\0": RECORD}},
        {"files": {"runs/\ud800": RECORD}},
        {"files": {"x" * 300: RECORD}},
        {"files": {"archive.json": RECORD}},
        {"files": {"archive.json": {"sha256": "0" * 64, "size": float("inf")}}},
        {"files": {"archive.json": {"sha256": "0" * 64, "size": float("nan")}}},
        {"files": {"archive.json": {"sha256": "0" * 64, "size": -1}}},
        {"files": {"archive.json": {"sha256": "0" * 64, "size": 10**30}}},
        {"files": {"archive.json": {"sha256": 5, "size": "many"}}},
        {"files": {"archive.json": 5}},
        {"version": 10**30},
        {"version": []},
        {"format": None},
    ],
    ids=str,
)
def test_a_wrong_manifest(archive: Archive, rejected, change: dict[str, Any]) -> None:
    assert _manifest(archive, **change) in rejected()


@pytest.mark.parametrize("name", [manifest.NAME, "archive.json"])
def test_a_file_of_a_gigabyte_is_not_read(archive: Archive, rejected, name: str) -> None:
    with open(archive.folder / name, "r+b") as file:
        file.truncate(1 << 30)  # takes no room on the disk
    line = rejected()
    assert "manifest.json is too large" in line or "archive.json: 1073741824 bytes instead of" in line


def test_a_signed_index_of_a_gigabyte_is_not_parsed(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, rejected
) -> None:
    monkeypatch.setattr("compress.tracking.archiveformat.LIMIT", 64)
    archive.sign()
    assert "archive.json: the file is too large" in rejected()


class StoreFaultError(Exception):
    error_code = "INVALID_PARAMETER_VALUE"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreFaultError("this store takes less"), 2),
        (OverflowError("int too large"), 2),
        (OSError(28, "No space left on device"), 5),
        (ConnectionError("the server is gone"), 6),
        (KeyboardInterrupt(), None),
        (TypeError("a fault of ours"), None),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("call", ["log_artifacts", "log_batch", "create_logged_model", "set_terminated"])
def test_a_fault_in_the_middle_leaves_no_run(
    archive: Archive, store: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int | None, call: str
) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    usual, calls = getattr(MlflowClient, call), []
    seen = Seen(store)
    numbers: list[str] = []

    def fail(self: MlflowClient, *words: Any, **more: Any) -> Any:
        calls.append(call)
        numbers.extend(e.experiment_id for e in seen.client.search_experiments(filter_string="name = 'toy'"))
        assert {run.info.status for run in seen.client.search_runs(numbers)} <= {"KILLED", "FINISHED"}
        if call == "create_logged_model" or len(calls) == 2:
            raise error
        return usual(self, *words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, call, fail)
        with pytest.raises(UserError if code is not None else type(error)) as caught:
            import_runs(store, archive.folder)
    if code is not None:
        assert caught.value.code == code
        assert caught.value.line().startswith(f"{archive.folder}/runs/")
        assert "the import failed, and the runs that it made were deleted" in caught.value.line()
    assert seen.client.search_experiments(filter_string="name = 'toy'") == []
    assert seen.client.search_runs(numbers[:1]) == []
    assert {r.info.status for r in seen.client.search_runs(numbers[:1], run_view_type=ViewType.ALL)} <= {
        "KILLED",
        "FINISHED",
    }
    assert seen.client.search_logged_models(numbers[:1]) == []

    assert [one.why_not for one in import_runs(store, archive.folder)] == ["", ""], "the next one makes all of them"
    runs = seen.runs()
    assert [run.info.status for run in runs] == ["FINISHED"] * 2
    assert {run.data.tags[STATE_TAG] for run in runs} == {"done"}


def test_what_cannot_be_taken_back_is_said(archive: Archive, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    def gone(*_: Any, **__: Any) -> None:
        raise ConnectionError("the server is gone")

    for call in ("log_artifacts", "delete_run", "set_tag"):
        monkeypatch.setattr(MlflowClient, call, gone)
    with pytest.raises(UserError) as caught:
        import_runs(store, archive.folder)
    assert "the import failed, and 1 of the runs that it made could not be deleted: the server is gone" in (
        caught.value.line()
    )


def test_a_saved_view_of_the_store_stays(archive: Archive, store: Store) -> None:
    client = store.client()
    number = client.create_experiment("toy", tags={VIEW: "mine"})
    import_runs(store, archive.folder)
    assert client.get_experiment(number).tags[VIEW] == "mine"

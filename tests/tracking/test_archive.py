"""Runs carried to another machine: everything arrives, nothing twice, and an archive that was touched is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from many_runs import fill
from toy_runs import log_toy_runs
from tracking_tools import Opener, Seen

from compress.cli.main import main
from compress.errors import ExitCode, UserError
from compress.storage import atomic
from compress.tracking import Store
from compress.tracking.archive import export_runs
from compress.tracking.importing import STATE_TAG, import_runs
from compress.tracking.listing import find_run
from compress.tracking.reading import Reader


@pytest.fixture
def other(template: Path, tmp_path: Path) -> Store:
    """The store of another machine."""
    (tmp_path / "other").mkdir()
    return Store(f"sqlite:///{shutil.copy(template, tmp_path / 'other' / 'mlflow.db')}")


@pytest.fixture
def archive(store: Store, tmp_path: Path) -> Path:
    log_toy_runs(tmp_path / "runs", store, "toy", rows=2)
    export_runs(store, (), None, tmp_path / "archive")
    return tmp_path / "archive"


def _as_seen(store: Store) -> dict[str, tuple]:
    """Everything of the runs but the ids."""
    seen = Seen(store)
    found = {}
    for run in seen.runs():
        tags = {k: v for k, v in run.data.tags.items() if k != "mlflow.parentRunId" and not k.startswith("compress.")}
        (model,) = [seen.client.get_logged_model(m.model_id) for m in run.outputs.model_outputs]
        points = {key: seen.points(run, key) for key in run.data.metrics}
        data = [(d.dataset.name, d.dataset.digest, d.tags[0].value) for d in run.inputs.dataset_inputs]
        figures = sorted((m.key, m.value, m.dataset_name) for m in model.metrics)
        times = (run.info.start_time, run.info.end_time, run.info.status)
        found[run.info.run_name] = (times, run.data.params, tags, points, data, model.name, model.params, figures)
    return found


def test_everything_arrives_once(archive: Path, store: Store, other: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "import", str(archive), "--tracking-uri", other.uri, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert [one["why_not"] for one in done] == ["", ""]
    assert _as_seen(other) == _as_seen(store)
    assert len(_as_seen(other)) == 2
    view = [t for t in Seen(other).client.get_experiment_by_name("toy").tags if t.startswith("mlflow.sharedViewState")]
    assert view == ["mlflow.sharedViewState.compress-accuracy"]
    for one in done:
        assert find_run(other, one["archived"]).run_id == one["run_id"] != one["archived"]

    assert main(["runs", "import", str(archive), "--tracking-uri", other.uri]) == 0
    said = capsys.readouterr()
    assert "imported 0 runs, skipped 2" in said.out
    assert "is skipped: the store already has it" in said.err
    assert [one.why_not for one in import_runs(store, archive)] == ["the store already has it"] * 2


def test_files_of_runs_and_models_arrive(opened: Opener, store: Store, other: Store, tmp_path: Path) -> None:
    run = opened("run")
    (tmp_path / "run" / "plot.svg").write_text("<svg/>")
    run.artifact(tmp_path / "run" / "plot.svg")
    (tmp_path / "run" / "model" / "inner").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    (tmp_path / "run" / "model" / "inner" / "file").write_text("inside")
    run.model(tmp_path / "run" / "model", name="m", model_type="distill")
    run.finish()
    done = export_runs(store, ["run"], None, tmp_path / "archive")
    assert (done.runs, done.models, done.left_out) == (1, 1, [])
    (made,) = import_runs(other, tmp_path / "archive")
    client = Seen(other).client
    (model,) = client.get_run(made.run_id).outputs.model_outputs
    assert [f.path for f in client.list_artifacts(made.run_id)] == ["plot.svg"]
    assert sorted(f.path for f in client.list_logged_model_artifacts(model.model_id)) == ["config.json", "inner"]


def test_children_hang_below_their_parents(opened: Opener, store: Store, other: Store, tmp_path: Path) -> None:
    above = opened("above")
    opened("below", parent=above.parent).finish()
    above.finish()
    export_runs(store, ["above"], None, tmp_path / "archive")
    made = {one.name: one.run_id for one in import_runs(other, tmp_path / "archive")}
    assert Seen(other).run("below").data.tags["mlflow.parentRunId"] == made["above"]


def test_an_import_that_was_cut_off_is_done_anew(archive: Path, other: Store) -> None:
    (first, _) = import_runs(other, archive)
    Seen(other).client.set_tag(first.run_id, STATE_TAG, "begun")
    (again, second) = import_runs(other, archive)
    assert (again.why_not, second.why_not) == ("", "the store already has it")
    assert len(Seen(other).runs()) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("harm", ["bit", "missing", "added", "newer", "path", "text", "none"])
def test_an_archive_that_was_touched_makes_nothing(archive: Path, other: Store, harm: str) -> None:
    index = archive / "archive.json"
    content = json.loads(index.read_text())
    (run_file, *_) = sorted((archive / "runs").glob("*.json"))
    if harm == "bit":
        run_file.write_text(run_file.read_text().replace("0.9", "0.8"))
        expected = "the archive is damaged: runs/"
    elif harm == "missing":
        run_file.unlink()
        expected = "the archive is damaged: runs/"
    elif harm == "added":
        (archive / "runs" / "more.json").write_text("{}")
        expected = "the archive contains files that are not in its manifest: its manifest does not list runs/more.json"
    elif harm == "none":
        index.unlink()
        expected = "not an archive of runs: it contains no archive.json"
    else:
        if harm == "newer":
            content["version"], expected = 2, "the archive was written by a newer version: its format version is 2"
        elif harm == "path":
            content["runs"][0], expected = "../../secret", "not the format of an archive: runs.0: String should match"
        else:
            content["runs"], expected = 5, "not the format of an archive: runs: Input should be a valid list"
        _rewrite(archive, {"archive.json": json.dumps(content)})
    with pytest.raises(UserError) as caught:
        import_runs(other, archive)
    assert expected in caught.value.line()
    assert Seen(other).runs() == []


def _rewrite(archive: Path, files: dict[str, str]) -> None:
    """An archive with other content and a manifest that fits it: what a person can make by hand."""
    kept = {name: (archive / name).read_text() for name in atomic.read_manifest(archive)} | files
    with atomic.new_folder(archive, replace=True) as temp:
        for name, text in kept.items():
            atomic.write_text(temp / name, text)


def test_files_that_are_gone_are_told_and_the_rest_is_written(
    archive: Path, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store.database is not None
    shutil.rmtree(store.database.parent / "artifacts" / "toy" / "models")
    assert main(["runs", "export", str(tmp_path / "second"), "--tracking-uri", store.uri]) == 0
    said = capsys.readouterr()
    assert "wrote 2 runs and 2 models" in said.out
    assert said.err.count("if the files were moved, run `compress runs relocate`") == 2
    assert main(["runs", "export", str(archive), "--tracking-uri", store.uri]) == 3
    assert "exists already" in capsys.readouterr().err


def test_registered_versions_are_said_to_stay(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_toy_runs(tmp_path / "runs", store, "toy", rows=2)
    seen, tag = Seen(store), "mlflow.modelVersions"
    first, second = [model.model_id for run in seen.runs() if run.outputs for model in run.outputs.model_outputs]
    seen.client.set_logged_model_tags(first, {tag: json.dumps([{"name": "opinions", "version": "3"}])})
    seen.client.set_logged_model_tags(second, {tag: "no JSON"})
    assert main(["runs", "export", str(tmp_path / "archive"), "--tracking-uri", store.uri]) == 0
    line = "registered versions and their aliases are not exported: opinions 3; promote the models again"
    assert line in capsys.readouterr().err


@pytest.mark.thorough
def test_more_runs_and_metrics_are_no_more_statements_than_one_a_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.entities import LoggedModelOutput
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    client, counted, direct = store.client(), [], []
    usual = Reader._select
    monkeypatch.setattr(Reader, "_select", lambda *words: direct.append(words) or usual(*words))

    def count(*_: object) -> None:
        counted.append(1)

    def exported(name: str) -> tuple[int, int]:
        counted.clear()
        direct.clear()
        event.listen(Engine, "before_cursor_execute", count)
        try:
            done = export_runs(store, (), None, tmp_path / name)
        finally:
            event.remove(Engine, "before_cursor_execute", count)
        assert (done.runs, done.models) == (len(list((tmp_path / name / "runs").glob("*.json"))), done.runs)
        return len(counted), len(direct)

    def add(seed: int) -> None:
        for run_id in fill(store, 25, seed=seed, answers=False):
            number = client.get_run(run_id).info.experiment_id
            model = client.create_logged_model(number, source_run_id=run_id)
            client.finalize_logged_model(model.model_id, "READY")
            client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])

    add(1)
    first, of_25 = exported("first")
    add(2)
    second, of_50 = exported("second")
    assert (of_25, of_50) == (25, 50), "the points of all metrics of a run are one statement"
    assert second <= first + 2, "runs and models come by the page"


def test_points_are_the_same_through_the_client(archive: Path, store: Store) -> None:
    seen, quick, slow = Seen(store), Reader(store), Reader(store)
    slow._database = None
    for run in seen.runs():
        points = quick.points(run.info.run_id, run.data.metrics)
        assert points == slow.points(run.info.run_id, run.data.metrics)
        assert len(points) > len(run.data.metrics)
        assert quick._database is not None


def test_what_a_store_took_and_an_import_would_not_is_left_out_and_said(
    store: Store, other: Store, tmp_path: Path
) -> None:
    from mlflow.entities import LoggedModelOutput

    client = store.client()
    number = client.create_experiment("toy")
    tags = {"note": "x" * 9000, "a`b": "c", "kept": "1"}
    run = client.create_run(number, start_time=10_000, run_name="od\x1bd", tags=tags)
    model = client.create_logged_model(number, name="m", params={"rate": "x" * 7000, "kept": "1"})
    gone = client.create_logged_model(number, name="gone")
    for one in (model, gone):
        client.log_outputs(run.info.run_id, [LoggedModelOutput(one.model_id, step=0)])
    client.delete_logged_model(gone.model_id)
    client.set_terminated(run.info.run_id, end_time=9_000)
    done = export_runs(store, (), None, tmp_path / "archive")
    said = " | ".join(done.left_out)
    assert f"a model of run od\\x1bd was deleted: {gone.model_id}" in said
    assert "run od\\x1bd: left out end_time: a run cannot end before it starts" in said
    assert "run od\\x1bd: left out tags.note: String should have at most 8000 characters" in said
    assert "run od\\x1bd: left out tags.a`b.[key]: a key holds" in said
    assert "model m: left out params.rate: String should have at most 6000 characters" in said
    (made,) = import_runs(other, tmp_path / "archive")
    found = Seen(other).client.get_run(made.run_id)
    assert (found.info.run_name, found.info.start_time, found.data.tags["kept"]) == ("od\\x1bd", 10_000, "1")
    assert not {"note", "a`b"} & set(found.data.tags)


def test_an_experiment_that_no_archive_can_hold_is_named(store: Store, tmp_path: Path) -> None:
    client = store.client()
    client.create_run(client.create_experiment("a\x1bb"), run_name="one")
    with pytest.raises(UserError, match="run one: cannot be exported: experiment: a name has at least one character"):
        export_runs(store, (), None, tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder in which nobody can make one")
def test_a_place_that_takes_no_folder_is_found_before_anything_is_read(store: Store) -> None:
    store.client()
    with pytest.raises(UserError, match="cannot be written") as refused:
        export_runs(store, [], None, Path("/proc/archive"))
    assert refused.value.code == ExitCode.INPUT


def test_a_child_that_is_listed_first_still_hangs_below_its_parent(
    opened: Opener, store: Store, other: Store, tmp_path: Path
) -> None:
    above = opened("above")
    opened("below", parent=above.parent).finish()
    above.finish()
    export_runs(store, ["above"], None, tmp_path / "archive")
    content = json.loads((tmp_path / "archive" / "archive.json").read_text())
    content["runs"].reverse()
    _rewrite(tmp_path / "archive", {"archive.json": json.dumps(content)})
    done = import_runs(other, tmp_path / "archive")
    assert [one.name for one in done] == ["below", "above"]
    assert Seen(other).run("below").data.tags["mlflow.parentRunId"] == done[1].run_id

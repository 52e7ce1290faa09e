"""What a run says arrives in the store, once, and as it was said."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import pytest
from tracking_tools import Opener, Seen

from compress.errors import Stopped, UserError
from compress.storage import atomic
from compress.storage.trees import copy_tree, drop_names, restore_names, second_names, tree_bytes
from compress.tracking import Store, open_run
from compress.tracking.replay import Replay


def _model_folder(at: Path) -> Path:
    at.mkdir(parents=True)
    (at / "config.json").write_text("{}")
    (at / "model.safetensors").write_bytes(b"weights")
    return at


def test_everything_a_run_says_arrives(opened: Opener, seen: Seen, tmp_path: Path, warnings_said: list[str]) -> None:
    run = opened("student", tags={"compress.recipe_sha": "abc"}, command="compress distill --recipe distilbert")
    run.params({"method": "distill", "student.layers": 3, "learning_rate": 5e-5})
    run.dataset("opinions", "d" * 40, "embedded:opinions", "evaluation")
    for step in range(10):
        run.metrics({"train/loss": 1 / (step + 1)}, step)
    run.note("# A student\n\n| a | b |")
    (tmp_path / "student" / "recipe.yaml").write_text("seed: 1")
    run.artifact(tmp_path / "student" / "recipe.yaml")
    ending = run.finish()

    assert (ending.status, ending.left, ending.sync) == ("FINISHED", 0, None)
    assert warnings_said == []
    got = seen.run("student")
    assert got.info.run_id == ending.run_id
    assert got.info.status == "FINISHED"
    assert got.data.params == {"method": "distill", "student.layers": "3", "learning_rate": "5e-05"}
    assert seen.points(got, "train/loss") == [(s, pytest.approx(1 / (s + 1), rel=1e-5)) for s in range(10)]
    tags = got.data.tags
    assert tags["mlflow.note.content"].startswith("# A student")
    assert tags["mlflow.source.name"] == "compress distill --recipe distilbert"
    assert (tags["compress.method"], tags["compress.role"]) == ("distill", "student")
    assert tags["compress.recipe_sha"] == "abc"
    assert tags["mlflow.runColor"] == "#2563eb"
    (dataset,) = got.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("opinions", "d" * 36)
    assert dataset.tags[0].value == "evaluation"
    assert [f.path for f in seen.client.list_artifacts(got.info.run_id)] == ["recipe.yaml"]


def test_final_figures_have_no_step_so_that_the_page_draws_bars(opened: Opener, seen: Seen) -> None:
    run = opened("a")
    run.metrics({"quality/accuracy": 0.9})
    run.finish()
    assert seen.points(seen.run("a"), "quality/accuracy") == [(0, 0.9)]


def test_a_model_is_logged_with_its_figures_and_registered(opened: Opener, seen: Seen, tmp_path: Path) -> None:
    run = opened("student", method="share")
    final = {"quality/accuracy": 0.91, "size/disk_mb": 12.5}
    run.metrics(final)
    folder = _model_folder(tmp_path / "student" / "model")
    key = run.model(
        folder,
        name="opinions/3 layers",
        model_type="share",
        params={"layers": 3},
        metrics=final,
        dataset=("opinions", "abc"),
    )
    run.register(key, "opinions", "champion")
    assert run.finish().left == 0

    got = seen.run("student")
    (model,) = seen.client.search_logged_models([got.info.experiment_id])
    assert (model.name, model.model_type, model.status.value) == ("opinions-3 layers", "share", "READY")
    assert {(m.key, m.value, m.dataset_name, m.dataset_digest) for m in model.metrics} == {
        ("quality/accuracy", 0.91, "opinions", "abc"),
        ("size/disk_mb", 12.5, "opinions", "abc"),
    }
    assert model.params == {"layers": "3"}
    assert model.source_run_id == got.info.run_id
    assert got.outputs is not None
    assert [m.model_id for m in got.outputs.model_outputs] == [model.model_id]
    assert {f.path for f in seen.client.list_logged_model_artifacts(model.model_id)} == {
        "config.json",
        "model.safetensors",
    }
    assert seen.points(got, "quality/accuracy") == [(0, 0.91)], "the model's figure is the run's, not a second point"
    version = seen.client.get_model_version_by_alias("opinions", "champion")
    assert version.source == model.artifact_location


def test_a_file_with_two_names_is_held_once(opened: Opener, seen: Seen, tmp_path: Path) -> None:
    with atomic.new_folder(tmp_path / "student" / "model") as folder:
        _model_folder(folder / "inner")
        (folder / "model.onnx").write_bytes(b"graph")
        (folder / "onnx").mkdir()
        for name in ("model.onnx", "model_quantized.onnx"):
            os.link(folder / "model.onnx", folder / "onnx" / name)
    folder = tmp_path / "student" / "model"
    assert second_names(folder) == ["onnx/model.onnx", "onnx/model_quantized.onnx"]
    run = opened("student")
    run.model(folder, name="m", model_type="share", params={}, metrics={}, dataset=None)
    assert run.finish().left == 0
    (model,) = seen.client.search_logged_models([seen.run("student").info.experiment_id])
    held = {f.path for f in seen.client.list_logged_model_artifacts(model.model_id)}
    assert held == {"inner", "model.onnx", "manifest.json"}

    copied = tmp_path / "copied"
    copy_tree(folder, copied)
    drop_names(copied, second_names(folder))
    assert not (copied / "onnx").exists()
    restore_names(copied)
    assert atomic.verify_folder(copied) == []
    assert tree_bytes(copied) == tree_bytes(folder)
    assert (copied / "onnx/model.onnx").samefile(copied / "model.onnx")


def test_a_child_hangs_below_its_parent(opened: Opener, seen: Seen) -> None:
    parent = opened("recipe")
    child = opened("stage", parent=parent.parent)
    child.finish()
    parent.finish()
    above = seen.run("recipe").info.run_id
    assert seen.run("stage").data.tags["mlflow.parentRunId"] == above
    assert seen.run("stage").data.tags["compress.parent_run"] == above


def test_infinity_and_nan_become_tags(opened: Opener, seen: Seen) -> None:
    run = opened("bad")
    run.metrics({"train/loss": 1.0}, 1)
    run.metrics({"train/loss": math.nan, "train/norm": math.inf}, 2)
    run.metrics({"train/loss": math.nan}, 3)
    run.finish("FAILED")
    got = seen.run("bad")
    assert seen.points(got, "train/loss") == [(1, 1.0)]
    assert "train/norm" not in got.data.metrics
    assert got.data.tags["nonfinite/train/loss"] == "nan at step 2"
    assert got.data.tags["nonfinite/train/norm"] == "inf at step 2"
    assert got.info.status == "FAILED"


def test_a_resumed_run_is_the_same_run_without_doubled_points(opened: Opener, seen: Seen) -> None:
    first = opened("run")
    for step in range(8):
        first.metrics({"train/loss": float(step)}, step)
    first.finish("KILLED")
    assert seen.run("run").info.status == "KILLED"
    again = opened("run")
    assert seen.client is not None
    for step in range(5, 12):  # a checkpoint at 5
        again.metrics({"train/loss": float(step)}, step)
    ending = again.finish()
    (got,) = seen.runs()
    assert got.info.run_id == ending.run_id
    assert got.info.status == "FINISHED"
    assert seen.points(got, "train/loss") == [(s, float(s)) for s in range(12)]


def test_a_parameter_that_changes_becomes_a_tag(opened: Opener, seen: Seen) -> None:
    first = opened("run")
    first.params({"threads": 2, "seed": 1})
    first.finish("KILLED")
    second = opened("run")
    second.params({"threads": 4, "seed": 1})
    second.finish()
    got = seen.run("run")
    assert got.data.params == {"threads": "2", "seed": "1"}
    assert got.data.tags["changed/threads"] == "4"


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "FINISHED"), (ValueError("x"), "FAILED"), (Stopped("SIGTERM"), "KILLED"), (KeyboardInterrupt(), "KILLED")],
)
def test_the_block_ends_the_run(opened: Opener, seen: Seen, error: BaseException | None, status: str) -> None:
    def work() -> None:
        with opened("run"):
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(type(error)):
            work()
    assert seen.run("run").info.status == status


def test_many_points_and_odd_names_arrive(opened: Opener, seen: Seen) -> None:
    run = opened("run")
    run.metrics({f"layer/{i}": float(i) for i in range(2500)})
    run.params({f"p{i}": i for i in range(250)})
    run.metrics({"a|b": 1.0, "../x": 2.0})
    assert run.finish().left == 0
    got = seen.run("run")
    assert len(got.data.metrics) == 2502
    assert len(got.data.params) == 250
    assert {"a_b", "x"} <= set(got.data.metrics)


def test_a_call_does_not_wait_for_the_store(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, in_vain = threading.Event(), []

    def hang(_: Replay) -> None:
        if not answers.wait(300):
            in_vain.append("a call waited")

    monkeypatch.setattr(Replay, "send_all", hang)
    run = opened("run")
    for step in range(300):
        run.metrics({"train/loss": 1.0, "train/rate": 0.1}, step)
    answers.set()
    assert not in_vain


def test_a_full_disk_is_told_once_and_training_goes_on(
    opened: Opener, warnings_said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened("run")
    monkeypatch.setattr(run._journal, "append", _full)
    for step in range(5):
        run.metrics({"train/loss": 1.0}, step)
    assert len(warnings_said) == 1
    assert "cannot be written: [Errno 28] No space left on device" in warnings_said[0]


def _full(_: object) -> None:
    raise OSError(28, "No space left on device")


def test_no_secret_is_written_down(opened: Opener, seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-canary")
    monkeypatch.setattr("sys.argv", ["compress", "distill", "--tracking-uri", "http://me:canary-pw@host"])
    run = opened("run")
    run.params({"token": "canary-canary"})
    run.tags({"where": "http://a:canary-pw@b"})
    run.note("see https://u:canary-pw@h")
    run.finish()
    assert seen.run("run").data.params == {"token": "***"}
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"canary" not in path.read_bytes()


def test_two_processes_cannot_write_one_journal(opened: Opener, tmp_path: Path) -> None:
    run = opened("run")
    with pytest.raises(UserError, match="another run uses this folder"):
        open_run(tmp_path / "run", experiment="toy", name="x", method="distill", store=run.store)


def test_an_artifact_that_is_gone_is_told_and_the_rest_arrives(
    opened: Opener, seen: Seen, tmp_path: Path, warnings_said: list[str]
) -> None:
    run = opened("run")
    run.artifact(tmp_path / "never-there.txt")
    run.metrics({"a": 1.0})
    assert run.finish().left == 0
    assert seen.run("run").data.metrics == {"a": 1.0}
    (said,) = warnings_said
    assert "rejected a record" in said
    assert "never-there.txt does not exist" in said


def test_the_experiment_has_our_view(opened: Opener, seen: Seen) -> None:
    opened("run", quality="quality/f1").finish()
    experiment = seen.client.get_experiment_by_name("toy")
    assert experiment is not None
    assert "mlflow.sharedViewState.compress-f1" in experiment.tags
    assert experiment.artifact_location is not None
    assert experiment.artifact_location.endswith("/mlruns/artifacts/toy")


def test_a_database_file_is_waited_for_longer_than_a_server(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may be dead; a file may be in the making by other processes."""
    waited: list[float] = []
    for name, store in (("server", Store("http://127.0.0.1:1")), ("file", None)):
        run = opened(name)
        assert run._sender is not None
        monkeypatch.setattr(run._sender, "flush", waited.append)
        run.store = store or run.store
        run.finish()
    assert waited == [30.0, 300.0]

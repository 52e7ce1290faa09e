"""A killed process, a lost answer, an emptied store: what the journal holds reaches the store, each point once."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
from forked_scripts import ForkedScripts
from tracking_tools import Opener, Seen

from compress.errors import UserError
from compress.tracking import Store, replay, sync
from compress.tracking import records as rec
from compress.tracking.state import SendState, not_beyond, read_state

_TRAINING = """
import os, sys, time
from pathlib import Path
from compress.tracking import Store, open_run
run = open_run(Path(sys.argv[1]), experiment="toy", name="killed", method="distill", store=Store(sys.argv[2]),
               interval=float(sys.argv[3]))
for step in range(int(sys.argv[4])):
    run.metrics({"train/loss": 1.0 / (step + 1), "train/rate": 0.1}, step)
if "COMPRESS_FAULT" in os.environ:  # at which the sender dies, whenever it comes there
    time.sleep(60)
os.kill(os.getpid(), 9)
"""


def _die_in_training(
    scripts: ForkedScripts, folder: Path, store: Store, *, interval: float, steps: int, **environment: str
) -> str:
    ended = scripts.run(_TRAINING, folder, store.uri, interval, steps, **environment)
    assert ended.code == -signal.SIGKILL, ended.err
    return ended.err


def _all_points(seen: Seen, steps: int) -> None:
    (got,) = seen.runs()
    for key in ("train/loss", "train/rate"):
        assert [s for s, _ in seen.points(got, key)] == list(range(steps))


@pytest.mark.thorough
def test_a_killed_run_is_completed_and_ended(store: Store, seen: Seen, scripts: ForkedScripts, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _die_in_training(scripts, folder, store, interval=3600, steps=700)

    (done,) = sync(tmp_path, uri=store.uri)
    assert (done.status, done.folder, done.refused, done.live) == ("KILLED", folder, 0, False)
    _all_points(seen, 700)
    assert seen.runs()[0].info.status == "KILLED"
    last = rec.read(folder).records[-1]
    assert seen.runs()[0].info.end_time == last["t"], "it ended when it last gave a sign of life"

    (again,) = sync(tmp_path, uri=store.uri)
    assert again.sent == 0
    _all_points(seen, 700)


@pytest.mark.thorough
def test_killed_between_sending_and_noting_it(store: Store, seen: Seen, scripts: ForkedScripts, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fault = "tracking.after_send:2:kill"
    said = _die_in_training(scripts, folder, store, interval=0.05, steps=300, COMPRESS_FAULT=fault)
    assert "fault: tracking.after_send hit 2: kill" in said
    state = read_state(rec.state_path(folder))
    assert state is not None
    assert state.sent <= 1, "what arrived was not noted"
    assert sum(len(seen.points(r, "train/loss")) for r in seen.runs()) > 0

    (done,) = sync(folder, uri=store.uri)
    assert done.status == "KILLED"
    _all_points(seen, sum(r["op"] == "metrics" for r in rec.read(folder).records))


def test_a_lost_state_file_only_costs_a_comparison(opened: Opener, store: Store, seen: Seen, tmp_path: Path) -> None:
    run = opened("run")
    for step in range(50):
        run.metrics({"train/loss": 1.0, "train/rate": 2.0}, step)
    run.finish()
    rec.state_path(tmp_path / "run").write_text('{"cut short')
    (done,) = sync(tmp_path / "run", uri=store.uri)
    assert done.sent == 52
    _all_points(seen, 50)
    assert seen.runs()[0].info.status == "FINISHED"


def test_an_emptied_store_is_filled_again(opened: Opener, seen: Seen, template: Path, tmp_path: Path) -> None:
    run = opened("run")
    for step in range(20):
        run.metrics({"train/loss": 1.0, "train/rate": 2.0}, step)
    run.finish()
    empty = Store(f"sqlite:///{shutil.copy(template, tmp_path / 'empty.db')}")
    state_path = rec.state_path(tmp_path / "run")
    state_path.write_text(json.dumps({**json.loads(state_path.read_text()), "store": empty.shown}))
    (done,) = sync(tmp_path / "run", uri=empty.uri)
    assert done.sent == 22
    _all_points(Seen(empty), 20)


def test_a_run_that_was_deleted_stays_deleted(opened: Opener, seen: Seen, tmp_path: Path) -> None:
    run_id = opened("run").finish().run_id
    seen.client.delete_run(str(run_id))
    for state in ("kept", "lost"):
        if state == "lost":
            rec.state_path(tmp_path / "run").unlink()
        with pytest.raises(UserError, match="was deleted in the store; restore it there to continue"):
            sync(tmp_path / "run", uri=seen.store.uri)


def test_a_run_that_was_deleted_before_it_went_on_loses_nothing(opened: Opener, seen: Seen) -> None:
    first = opened("run")
    first.metrics({"train/loss": 1.0}, 0)
    run_id = first.finish().run_id
    assert run_id is not None
    seen.client.delete_run(run_id)
    second = opened("run")
    second.dataset("opinions", "0123456789abcdef", "embedded:opinions", "evaluation")
    assert second.finish(seconds=120).left > 0
    seen.client.restore_run(run_id)
    assert sync(second.folder)[0].refused == 0
    assert len(seen.run("run").inputs.dataset_inputs) == 1


def test_a_model_begun_before_the_kill_is_not_made_twice(
    opened: Opener, store: Store, seen: Seen, tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    run = opened("run")
    key = run.model(folder, name="m", model_type="distill", metrics={"quality/accuracy": 0.5})
    run.register(key, "name", "best")
    run.finish()
    state_path = rec.state_path(tmp_path / "run")
    state = json.loads(state_path.read_text())
    state_path.write_text(json.dumps({**state, "sent": 1, "models": {}}))
    sync(tmp_path / "run", uri=store.uri)
    (got,) = seen.runs()
    assert len(seen.client.search_logged_models([got.info.experiment_id])) == 1
    assert len(seen.client.search_model_versions("name = 'name'")) == 1
    assert seen.points(got, "quality/accuracy") == [(0, 0.5)]


def test_a_moved_folder_still_has_its_files(opened: Opener, seen: Seen, tmp_path: Path) -> None:
    down = Store("http://127.0.0.1:9")
    run = opened("run", store=down)
    (tmp_path / "run" / "recipe.yaml").write_text("seed: 1")
    run.artifact(tmp_path / "run" / "recipe.yaml")
    run.finish(seconds=0.1)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    (done,) = sync(moved, uri=str(seen.store.uri))
    assert done.refused == 0
    assert [f.path for f in seen.client.list_artifacts(seen.run("run").info.run_id)] == ["recipe.yaml"]


def test_a_live_run_is_left_alone(opened: Opener, store: Store, tmp_path: Path) -> None:
    run = opened("run")
    (done,) = sync(tmp_path, uri=store.uri)
    assert done.live
    assert run.finish().status == "FINISHED"
    (done,) = sync(tmp_path, uri=store.uri)
    assert (done.live, done.status) == (False, "FINISHED")


@pytest.mark.thorough
def test_children_find_their_parent_whichever_comes_first(
    opened: Opener, store: Store, seen: Seen, tmp_path: Path
) -> None:
    parent = opened("parent", store=Store("http://127.0.0.1:9"))
    child = opened("parent/child", name="child", parent=parent.parent)
    assert child.finish().left == 0
    assert "mlflow.parentRunId" not in seen.run("child").data.tags
    parent.finish(seconds=0.1)
    assert [d.name for d in sync(tmp_path, uri=store.uri)] == ["parent", "child"]
    assert seen.run("child").data.tags["mlflow.parentRunId"] == seen.run("parent").info.run_id


def test_a_run_that_ends_before_the_one_above_it_is_sent(opened: Opener, store: Store, seen: Seen) -> None:
    nowhere = Store("http://127.0.0.1:9")
    above = opened("above", store=nowhere)
    below = opened("below", store=nowhere, parent=above.parent)
    for run in (below, above):
        run.finish(seconds=0.1)
    for run in (below, above):  # the order in which one process may send them on a busy machine
        replay.Replay(run.folder, store, lambda _: None).send_all()
    assert seen.run("below").data.tags["mlflow.parentRunId"] == seen.run("above").info.run_id


def test_a_parent_goes_first_whatever_is_named_first(opened: Opener, store: Store, seen: Seen, tmp_path: Path) -> None:
    parent = opened("summary", store=Store("http://127.0.0.1:9"))
    time.sleep(0.002)  # begun at another millisecond
    child = opened("lr=1", store=Store("http://127.0.0.1:9"), parent=parent.parent)
    for run in (child, parent):
        run.finish(seconds=0.1)
    assert [d.name for d in sync(child.folder, parent.folder, uri=store.uri)] == ["summary", "lr=1"]
    assert seen.run("lr=1").data.tags["mlflow.parentRunId"] == seen.run("summary").info.run_id


def test_the_store_is_the_runs_own_unless_another_is_named(
    opened: Opener, store: Store, seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened("run").finish()
    monkeypatch.chdir(tmp_path.parent)
    (done,) = sync(tmp_path / "run")
    assert done.sent == 0
    assert done.run_id == seen.run("run").info.run_id


def test_a_password_that_is_not_kept_is_asked_for(opened: Opener, tmp_path: Path) -> None:
    opened("run", store=Store("http://me:canary@127.0.0.1:9")).finish(seconds=0.1)
    with pytest.raises(UserError) as caught:
        sync(tmp_path / "run")
    assert "whose password is not stored; set MLFLOW_TRACKING_URI to the full address" in caught.value.line()
    assert "canary" not in (tmp_path / "run" / "tracking" / "journal.jsonl").read_text()


@pytest.mark.parametrize(("make", "message"), [(False, "no such folder"), (True, "no tracked run in this folder")])
def test_a_folder_without_runs(tmp_path: Path, make: bool, message: str) -> None:
    folder = tmp_path / "nothing"
    if make:
        folder.mkdir()
    with pytest.raises(UserError, match=message):
        sync(folder)


def test_a_store_that_does_not_answer(opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    opened("run").finish()
    with pytest.raises(UserError) as caught:
        sync(tmp_path / "run", uri="http://127.0.0.1:9")
    line = caught.value.line()
    assert "http://127.0.0.1:9 does not accept the metrics" in line
    assert "run the same command again; no data is lost" in line
    assert caught.value.code == 6


def test_a_power_cut_that_took_sent_records(opened: Opener, seen: Seen, tmp_path: Path) -> None:
    run = opened("run")
    for step in range(10):
        run.metrics({"train/loss": 1.0}, step)
    run.finish("KILLED")
    journal = rec.journal_path(tmp_path / "run")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:5]))  # the start and steps 0-3
    again = opened("run")
    for step in range(4, 15):
        again.metrics({"train/loss": 1.0}, step)
    assert again.finish().left == 0
    got = seen.run("run")
    steps = [s for s, _ in seen.points(got, "train/loss")]
    assert sorted(set(steps)) == list(range(15))
    assert got.info.status == "FINISHED"


def test_started_at_is_the_time_it_began(opened: Opener, seen: Seen) -> None:
    before = int(time.time() * 1000)
    run = opened("run", store=Store("http://127.0.0.1:9"))
    after = int(time.time() * 1000)
    run.finish(seconds=0.05)
    time.sleep(0.1)
    sync(run.folder, uri=seen.store.uri)
    got = seen.run("run").info
    assert before <= got.start_time <= after


def test_a_state_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    earlier = {"version": 1, "store": "x", "sent": 3, "run_id": "r", "experiment_id": "1", "models": {"k": "m"}}
    (tmp_path / "state.json").write_text(json.dumps({**earlier, "linked": None, "refused": 1}))
    found = read_state(tmp_path / "state.json")
    assert found is not None
    assert (found.sent, found.models, found.refused, found.files) == (3, {"k": "m"}, 1, [])


def test_files_that_a_power_cut_took_are_forgotten(tmp_path: Path) -> None:
    state = SendState("x", sent=9, files=[2, 7])
    state.save(tmp_path / "state.json")
    not_beyond(tmp_path / "state.json", 5)
    found = read_state(tmp_path / "state.json")
    assert found is not None
    assert (found.sent, found.files) == (5, [2])

"""A kill, an error or a full disk at every point of every durable step: old or new is there, whole, always."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import durable_scenarios as scenarios
import pytest
from durable_scenarios import CALL, NEW, OLD, SCENARIOS, Server

from compress.errors import ExitCode, UserError
from compress.storage import atomic, faults, temporary
from compress.storage.journal import Journal, read
from compress.storage.lock import run_lock, status


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    scenarios.prepare(folder)
    return folder


def passes(scenario: str, prepared: Path, folder: Path) -> list[tuple[str, int]]:
    """Every (point, nth) that the scenario passes, found by running it."""
    shutil.copytree(prepared, folder)
    with faults.record_points() as hits:
        SCENARIOS[scenario](folder)
    return hits


def content(folder: Path) -> str:
    assert atomic.verify_folder(folder) == []
    text = (folder / "weights.bin").read_text()
    return {OLD * 1000: OLD, NEW * 1000: NEW}[text]


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(temporary.PREFIX)]


def check_after(scenario: str, folder: Path, killed: bool) -> None:
    """What must hold whatever happened, at once and after the next write."""
    newest, passed_over = atomic.newest_valid(folder, "step-*")
    moved_aside = killed and scenario in ("replace_without_exchange", "clean") and not (folder / "step-1").exists()
    assert newest is not None, passed_over
    assert passed_over == []
    if not moved_aside:
        assert newest.name == "step-2" if (folder / "step-2").exists() else newest.name == "step-1"
        assert content(folder / "step-1") == OLD or scenario.startswith("replace")
    assert (folder / "note.txt").read_text() in (OLD, NEW)
    atomic.write_text(folder / "other.txt", "the next write")
    assert leftovers(folder) == []
    assert content(folder / "step-1") in (OLD, NEW)
    if (folder / "step-0").exists():
        assert content(folder / "step-0") == OLD
    if (folder / "step-2").exists():
        assert content(folder / "step-2") == NEW


@pytest.mark.parametrize("scenario", ["save", "replace", "replace_without_exchange", "remove", "write_file", "clean"])
def test_killed_at_every_point_leaves_old_or_new_whole(
    scenario: str, prepared: Path, tmp_path: Path, server: Server
) -> None:
    hits = passes(scenario, prepared, tmp_path / "recorded")
    assert len(hits) >= 4
    for i, (name, nth) in enumerate(hits):
        folder = tmp_path / str(i)
        shutil.copytree(prepared, folder)
        assert server.run(scenario, folder, f"{name}:{nth}:kill") == -signal.SIGKILL, (name, nth)
        check_after(scenario, folder, killed=True)
        if scenario != "save" or not (folder / "step-2").exists():
            SCENARIOS[scenario](folder)
        check_after(scenario, folder, killed=True)


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", ["save", "replace", "replace_without_exchange", "remove", "write_file"])
def test_killed_before_every_system_call_leaves_old_or_new_whole(
    scenario: str, prepared: Path, tmp_path: Path, server: Server
) -> None:
    for nth in range(1, 1000):
        folder = tmp_path / str(nth)
        shutil.copytree(prepared, folder)
        code = server.run(scenario, folder, f"{CALL}{nth}")
        check_after(scenario, folder, killed=True)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert 8 < nth < 999, "it came to its end, after a number of calls"


@pytest.mark.thorough
@pytest.mark.parametrize("action", ["raise", "enospc", "eio"])
@pytest.mark.parametrize("scenario", ["save", "replace", "replace_without_exchange", "remove", "write_file"])
def test_an_error_at_every_point_leaves_old_or_new_whole(
    scenario: str, action: str, prepared: Path, tmp_path: Path
) -> None:
    kind = faults.InjectedFault if action == "raise" else UserError
    for i, (name, nth) in enumerate(passes(scenario, prepared, tmp_path / "recorded")):
        folder = tmp_path / str(i)
        shutil.copytree(prepared, folder)
        with faults.arm_fault(name, action, nth), pytest.raises(kind) as caught:
            SCENARIOS[scenario](folder)
        if isinstance(caught.value, UserError):
            line = caught.value.line()
            assert caught.value.code == ExitCode.RESOURCES
            assert str(folder) in line
            assert temporary.PREFIX not in line
            assert "free" in line
            assert ("the disk is full" if action == "enospc" else "the disk failed (EIO)") in line
        check_after(scenario, folder, killed=False)


def test_the_old_target_is_untouched_when_writing_fails_before_the_rename(tmp_path: Path) -> None:
    scenarios.prepare(tmp_path)
    for name in ("folder.after_create", "folder.after_manifest", "folder.after_fsync", "file.after_chunk"):
        with faults.arm_fault(name, "enospc"), pytest.raises(UserError):
            scenarios.replace(tmp_path)
        assert content(tmp_path / "step-1") == OLD
        assert leftovers(tmp_path) == []


def test_a_full_disk_names_path_needed_and_free_bytes(tmp_path: Path) -> None:
    with faults.arm_fault("file.after_chunk", "enospc"), pytest.raises(UserError) as caught:
        atomic.write_bytes(tmp_path / "big", b"x" * 5_000_000)
    message = caught.value.line()
    assert message.startswith(f"{tmp_path / 'big'}: the disk is full: at least 5.0 MB needed, ")
    assert message.endswith(" free; free some space or write somewhere else")


@pytest.mark.parametrize("scenario", ["journal", "lock"])
def test_a_kill_never_spoils_journal_or_lock(scenario: str, prepared: Path, tmp_path: Path, server: Server) -> None:
    for i, (name, nth) in enumerate(passes(scenario, prepared, tmp_path / "recorded")):
        folder = tmp_path / str(i)
        folder.mkdir()
        assert server.run(scenario, folder, f"{name}:{nth}:kill") == -signal.SIGKILL
        if scenario == "lock":
            assert status(folder).state in ("dead", "none")
            with run_lock(folder):
                assert status(folder).state == "running"
            continue
        records, _ = read(folder / "journal.jsonl")
        assert records == [{"i": k} for k in range(len(records))]
        with Journal(folder / "journal.jsonl") as again:
            again.append({"i": len(records)})
        assert read(folder / "journal.jsonl")[0] == [{"i": k} for k in range(len(records) + 1)]


@pytest.mark.parametrize("scenario", ["remove_tree", "copy_database"])
def test_a_kill_leaves_what_others_wrote_whole_or_not_at_all(
    scenario: str, prepared: Path, tmp_path: Path, server: Server
) -> None:
    hits = passes(scenario, prepared, tmp_path / "recorded")
    assert hits
    for i, (name, nth) in enumerate(hits):
        folder = tmp_path / str(i)
        folder.mkdir()
        assert server.run(scenario, folder, f"{name}:{nth}:kill") == -signal.SIGKILL
        assert not (folder / "run").exists() or (folder / "run" / "artifact").read_text() == OLD
        if (folder / "copy.db").exists():
            with contextlib.closing(sqlite3.connect(folder / "copy.db")) as copy:
                assert copy.execute("SELECT text FROM content").fetchall() == [(OLD,)]
        atomic.write_text(folder / "other.txt", "the next write")
        assert leftovers(folder) == []


def test_every_declared_point_is_interrupted_somewhere(prepared: Path, tmp_path: Path) -> None:
    """A new durable step comes with a scenario here, or this says which point no test passes."""
    passed = {name for scenario in SCENARIOS for name, _ in passes(scenario, prepared, tmp_path / scenario)}
    ours = {name for name, module in faults.POINTS.items() if module.startswith("compress.storage.")}
    assert passed == ours

"""One run per folder; the second is told who has it; death is derived, never guessed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from compress.errors import ExitCode, UserError
from compress.storage import lock
from compress.storage.lock import file_lock, run_lock, status

HOLD = "import sys\nfrom compress.storage.lock import run_lock\nwith run_lock({!r}):\n  print(1, flush=True)\n  {}"


def start(folder: Path, then: str = "sys.stdin.read()") -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(lock.__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(str(folder), then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    return process


def change(folder: Path, **values: object) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_the_second_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with start(tmp_path) as first:
        with pytest.raises(UserError) as caught, run_lock(tmp_path):
            pytest.fail("two runs in one folder")
        assert caught.value.code == ExitCode.REFUSED == 3
        line = caught.value.line()
        assert line.startswith(
            f"{tmp_path}: another run uses this folder: process {first.pid} on {socket.gethostname()}"
        )
        assert status(tmp_path).state == "running"
        first.communicate("")
    assert status(tmp_path).state == "none"
    with run_lock(tmp_path):
        pass


def test_a_killed_holder_frees_the_lock_and_shows_as_dead(tmp_path: Path) -> None:
    with start(tmp_path) as first:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        found = status(tmp_path)
        assert found.state == "dead"
        assert found.holder is not None
        assert found.holder.pid == first.pid
        with run_lock(tmp_path) as mine:
            assert mine.pid == os.getpid()
            assert status(tmp_path).state == "running"


def test_a_holder_killed_with_a_living_child_is_still_replaced(tmp_path: Path) -> None:
    then = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
    with start(tmp_path, then) as first:
        assert first.stdout is not None
        child = int(first.stdout.readline())
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with run_lock(tmp_path):
            pass
        os.kill(child, signal.SIGKILL)


def test_a_stopped_holder_is_not_taken_for_dead(tmp_path: Path) -> None:
    with start(tmp_path) as first:
        os.kill(first.pid, signal.SIGSTOP)
        change(tmp_path, heartbeat=0.0)
        assert status(tmp_path).state == "running"
        with pytest.raises(UserError, match=f"process {first.pid}"), run_lock(tmp_path):
            pass
        os.kill(first.pid, signal.SIGCONT)
        first.communicate("")


def test_one_process_cannot_hold_it_twice_either(tmp_path: Path) -> None:
    with (
        run_lock(tmp_path),
        pytest.raises(UserError, match=f"another run uses this folder: process {os.getpid()}"),
        run_lock(tmp_path),
    ):
        pass
    assert status(tmp_path).state == "none"


def test_an_error_inside_frees_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), run_lock(tmp_path / "made"):
        raise KeyError
    assert os.listdir(tmp_path / "made") == [lock.LOCK]
    with run_lock(tmp_path / "made"):
        pass


def test_status_of_a_folder_nobody_ran_in_changes_nothing(tmp_path: Path) -> None:
    assert status(tmp_path).state == status(tmp_path / "nowhere").state == "none"
    assert os.listdir(tmp_path) == []
    for text in ("", "{}", "[1]", '{"pid": "x"}', "\0"):
        (tmp_path / "run.json").write_text(text)
        assert status(tmp_path).state == "none"


def test_a_reused_pid_or_another_boot_is_not_the_holder(tmp_path: Path) -> None:
    with start(tmp_path) as first:
        text = (tmp_path / "run.json").read_text()
        first.kill()
        first.wait()
    for values in ({"pid": os.getpid()}, {"pid": os.getpid(), "boot_id": "another"}):
        (tmp_path / "run.json").write_text(text)
        change(tmp_path, **values)
        assert status(tmp_path).state == "dead"


def test_on_another_machine_heartbeat_and_lock_decide(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        change(tmp_path, host="elsewhere", heartbeat=0.0)
        assert status(tmp_path).state == "running", "the lock is held"
        text = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(text)
    assert status(tmp_path).state == "dead"
    change(tmp_path, heartbeat=time.time())
    assert status(tmp_path).state == "running"


def test_the_record_is_not_believed_before_the_holder_wrote_it(tmp_path: Path) -> None:
    with start(tmp_path) as first:
        change(tmp_path, ticks="0")  # what a dead run before it left
        with pytest.raises(UserError, match="another run uses this folder: another process;"), run_lock(tmp_path):
            pass
        first.communicate("")


def test_the_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_HEARTBEAT", 0.05)
    with run_lock(tmp_path) as holder:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            now = lock.read_holder(tmp_path)
            if now is not None and now.heartbeat > holder.heartbeat:
                break
            time.sleep(0.02)
        else:
            pytest.fail("no heartbeat")
    assert not (tmp_path / "run.json").exists()


def test_file_lock_excludes_and_tells(tmp_path: Path) -> None:
    path = tmp_path / "made" / "store.lock"
    inside: list[int] = []

    def touch() -> None:
        with file_lock(path):
            inside.append(1)
            assert len(inside) == 1
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=touch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with (
        file_lock(path),
        pytest.raises(UserError, match=r"is locked: another process has held it for 0\.1 s") as caught,
        file_lock(path, timeout=0.1),
    ):
        pass
    assert caught.value.code == ExitCode.REFUSED

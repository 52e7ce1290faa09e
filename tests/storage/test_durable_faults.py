"""Fault points themselves: what arms them, what they do, what they cost when nobody asks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compress.errors import UserError
from compress.storage import atomic, faults

POINT = faults.point("tests.somewhere")


def test_unarmed_it_does_nothing() -> None:
    for _ in range(100):
        faults.fault(POINT)


def test_it_fires_at_the_nth_hit_and_only_there() -> None:
    with faults.arm_fault(POINT, "raise", nth=3):
        faults.fault(POINT)
        faults.fault(POINT)
        with pytest.raises(faults.InjectedFault, match=r"tests\.somewhere"):
            faults.fault(POINT)
        faults.fault(POINT)
    faults.fault(POINT)


@pytest.mark.parametrize(("action", "code"), [("enospc", errno.ENOSPC), ("eio", errno.EIO)])
def test_disk_errors_are_those_of_the_system(action: str, code: int) -> None:
    with faults.arm_fault(POINT, action), pytest.raises(OSError) as caught:
        faults.fault(POINT)
    assert caught.value.errno == code


def test_sleep_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("compress.storage.faults.time.sleep", slept.append)
    with faults.arm_fault(POINT, "sleep=0.2"):
        faults.fault(POINT)
    assert slept == [0.2]


def test_the_environment_arms_a_process(tmp_path: Path) -> None:
    code = f"from compress.storage import atomic; atomic.write_text({str(tmp_path / 'x')!r}, 'text')"
    root = str(Path(atomic.__file__).parents[2])
    environment = os.environ | {"COMPRESS_FAULT": "file.after_fsync:1:kill", "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == -9
    assert done.stderr == "fault: file.after_fsync hit 1: kill\n"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("spec", ["x", "x:1", "x:0:kill", "x:one:kill", "x:1:explode", "x:1:sleep=long"])
def test_a_fault_that_says_nothing_is_refused(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRESS_FAULT", spec)
    with pytest.raises(UserError, match=r"COMPRESS_FAULT: '.*' is not a fault: expected name:nth:action"):
        faults.fault(POINT)


def test_names_are_declared_once_and_never_misspelt() -> None:
    with pytest.raises(ValueError, match="declared by both"):
        faults.point("file.after_fsync")
    with (
        pytest.raises(KeyError, match=r"did you mean 'file\.after_fsync'"),
        faults.arm_fault("file.after_fsink", "kill"),
    ):
        pass
    with faults.arm_fault(POINT, "raise"), pytest.raises(KeyError, match="never declared"):
        faults.fault("tests.elsewhere")
    assert POINT in faults.points("tests.")

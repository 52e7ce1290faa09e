"""`compress doctor`: what is there, what is missing, and whether a run could start."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

from compress.cli import doctor
from compress.cli.main import main
from compress.errors import ExitCode
from compress.onnx import runtimes
from evaluation.cost import energy


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def report(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--json", *args]) == code
    return {row["subject"]: row for row in json.loads(capsys.readouterr().out)}


def test_it_covers_the_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = report(capsys)
    wanted = {
        "compress",
        "python",
        "system",
        "cpu",
        "cpu instructions",
        "torch",
        "threads",
        "store",
        "disk",
        "chromium",
    }
    assert wanted <= rows.keys()
    assert any(name.startswith("gpu") for name in rows)
    assert all(row["found"] for row in rows.values())
    assert list(folder.iterdir()) == [], "looking leaves nothing behind"


def test_for_people_it_is_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "what to do" in out
    assert "python" in out


def test_a_store_that_is_not_made_yet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys)["store"]["found"] == f"sqlite:///{folder}/mlruns/mlflow.db: does not exist yet"


def test_a_store_with_runs_is_read_not_touched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "x.db"
    with sqlite3.connect(path) as database:
        database.execute("create table runs (run_uuid text)")
        database.execute("insert into runs values ('a'), ('b')")
    database.close()
    before = path.read_bytes()
    row = report(capsys, "--tracking-uri", f"sqlite:///{path}")["store"]
    assert row["found"].startswith(f"sqlite:///{path} (from --tracking-uri): 2 runs, ")
    assert path.read_bytes() == before


def test_a_broken_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "x.db"
    path.write_bytes(b"not a database, surely not" * 100)
    row = report(capsys, "--tracking-uri", f"sqlite:///{path}", code=ExitCode.ENVIRONMENT)["store"]
    assert row["found"] == f"sqlite:///{path} (from --tracking-uri): cannot be read: file is not a database"
    assert row["state"] == "missing"


def test_an_address_that_cannot_be_a_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = report(capsys, "--tracking-uri", "sqlit:///x", code=ExitCode.ENVIRONMENT)["store"]
    assert "--tracking-uri: unknown type of store" in row["found"]


REQUIRES = [
    "torch<2.15,>=2.10",
    "no-such-core>=1",
    'transformers<6,>=5; extra == "hf"',
    'compress-bert[hf]; extra == "dev"',
    "no-such-tool>=1; extra == 'dev'",
    "pytest; extra == 'dev'",
]


def test_what_is_missing_for_which_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {"torch": "2.13.0", "transformers": "5.2", "pytest": "9"}
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: REQUIRES)
    monkeypatch.setattr(doctor, "_version", versions.get)
    rows = report(capsys, code=ExitCode.ENVIRONMENT)
    assert rows["extra hf"]["found"] == "transformers 5.2"
    assert (rows["extra dev"]["found"], rows["extra dev"]["do"], rows["extra dev"]["state"]) == (
        "not installed: no-such-tool",
        "pip install 'compress-bert[dev]'",
        "note",
    )
    assert (rows["no-such-core"]["found"], rows["no-such-core"]["state"]) == ("not installed", "missing")
    assert rows["torch"]["state"] == "ok"


def test_packages_that_are_not_built_for_a_platform_are_not_missed_on_it() -> None:
    lines = [*REQUIRES, "triton>=3.6; (sys_platform == 'linux' and platform_machine == 'x86_64') and extra == 'dev'"]
    linux, mac = ({"sys_platform": name, "platform_machine": "x86_64"} for name in ("linux", "darwin"))
    assert doctor._by_extra(lines, linux)["dev"] == ["no-such-tool", "pytest", "triton"]
    assert doctor._by_extra(lines, mac) == {**doctor._by_extra(lines, linux), "dev": ["no-such-tool", "pytest"]}


def test_from_a_bare_checkout(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> None:
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "requires", absent)
    assert report(capsys)["packages"]["found"] == "compress-bert is not installed"


def test_a_folder_without_room_or_right(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = type(doctor.shutil.disk_usage("/"))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(10**10, 10**10, 10**8))
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    rows = report(capsys)
    assert rows["disk"]["found"] == f"0.1 GB free at {folder}"
    assert rows["disk"]["do"] == "may be too little for checkpoints"
    assert rows["folder"]["found"] == f"{folder} is not writable"


def test_it_says_whether_energy_can_be_measured(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "POWERCAP", folder / "none")
    row = report(capsys)["energy, cpu"]
    assert (row["state"], row["do"]) == ("note", "no energy is reported")
    assert row["found"] == "none: the system reports no energy (no RAPL)"
    zone = folder / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("energy_uj", "7"), ("max_energy_range_uj", "1000")):
        (zone / name).write_text(text)
    monkeypatch.setattr(energy, "POWERCAP", folder / "powercap")
    row = report(capsys)["energy, cpu"]
    assert (row["state"], row["found"]) == ("ok", "package-0 (energy per 1,000 texts is measured)")


@pytest.mark.parametrize(("version", "state"), [("3.7.1", "ok"), (None, "note")])
def test_beside_a_gpu_it_reports_triton(version: str | None, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.training.gpu.find_obstacle", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(doctor, "_version", lambda name: version)
    (row,) = doctor._gpus()
    assert (row.subject, row.state) == ("triton", state)
    assert (row.do == "") == (state == "ok")


def test_the_onnxruntime_for_gpus_is_not_recommended_beside_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are imported by one name."""
    found: dict[Any, str | None] = dict.fromkeys(runtimes.RUNTIMES, "1.0")
    monkeypatch.setattr(runtimes, "versions", lambda: found)
    assert "onnxruntime-gpu 1.0" in doctor._runtimes().found
    found |= dict.fromkeys(runtimes.PROVIDERS, None)
    it = doctor._runtimes()
    assert (it.state, it.do) == ("ok", "")
    assert "onnxruntime-gpu" not in it.found

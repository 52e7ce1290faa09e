"""The cascade of a fit: what it is asked for, and what may not be claimed of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.cascade.request import CascadeRequest
from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import UserError
from compress.fit import joined_family, journal
from compress.fit import run as fitting
from compress.fit.request.bounds import Bounds
from compress.fit.request.options import FitOptions
from compress.tracking import open_run
from compress.tracking.records import read


def _make_model(folder: Path) -> Any:
    return SimpleNamespace(name=folder.name, folder=folder)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CascadeRequest]:
    """The requests for a cascade; all models are those of their folders' names."""
    found: list[CascadeRequest] = []

    def join(request: CascadeRequest, output: Path, open_run: Any) -> dict[str, Any]:
        found.append(request)
        assert open_run("cascade") == ("cascade-run", "cascade", "student", "cascade"), "beside the model's folder"
        return {"folder": str(output), "certificate": None}

    monkeypatch.setattr(joined_family, "join_models", join)
    monkeypatch.setattr(joined_family, "find_front", list)
    monkeypatch.setattr(joined_family, "settings_for", lambda recipe, table: {})
    monkeypatch.setattr(joined_family.atomic, "verify_folder", lambda folder: [])
    monkeypatch.setattr(joined_family.modelfolder, "fingerprint", lambda folder: folder.name)
    return found


def join_family(path: Path, *tried: Any, met: bool = True) -> dict[str, Any]:
    """Of a fit whose best model is the last."""
    console = SimpleNamespace(note=lambda text: None, result=lambda text: None)
    case: Any = SimpleNamespace(
        table=None, recipe=None, max_length=16, bounds=SimpleNamespace(max_drop=1.0), console=console,
        options=SimpleNamespace(device="cpu"), clock=SimpleNamespace(check=int),
    )  # fmt: skip
    bench: Any = SimpleNamespace(serving=SimpleNamespace(runtime="openvino"))
    runs: Any = SimpleNamespace(path=path, child=lambda folder, *said: (folder.name, *said))
    return joined_family.join_family(case, bench, runs, tried[:-1], tried[-1], met)


def test_models_that_the_rows_chose_are_joined_without_a_confidence(
    tmp_path: Path, asked: list[CascadeRequest]
) -> None:
    fast, best = (_make_model(tmp_path / name) for name in ("fast", "best"))
    assert not join_family(tmp_path, fast, best)["accepted"]
    (request,) = asked
    assert list(request.models) == ["fast", "best", "parent"]
    assert request.accepted == ["best"]
    assert request.rows_chose_models
    assert request.check_stop is int, "that of the fit's clock"
    assert request.runtime == "openvino", "as the models of the fit were timed"


def test_a_plan_that_is_the_parent_is_not_joined_with_it(tmp_path: Path, asked: list[CascadeRequest]) -> None:
    fast, whole = _make_model(tmp_path / "fast"), _make_model(tmp_path / "plans" / joined_family.PARENT)
    join_family(tmp_path, fast, whole)
    assert list(asked.pop().models) == ["fast", "parent"]
    alone = join_family(tmp_path, whole)
    assert not asked
    assert (alone["is_cascade"], alone["accepted"], alone["folder"]) == (False, False, str(whole.folder))


@pytest.mark.parametrize("status", ["uncertified", "infeasible"])
def test_a_cascade_within_its_bound_is_the_result(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "status": status, "why": ["busy"], "size_mb": 1.0, "latency": {"ms": 1.0},
        "quality": {"metric": "accuracy", "value": None},
    }  # fmt: skip
    document = {"model": "f/model", "certificate": found, "cascade": {"accepted": True}}
    monkeypatch.setattr(fitting, "Fit", lambda *_: SimpleNamespace(go=lambda: document))
    wanted = FitOptions("m", Bounds(max_drop=1), cascade=True)
    console = Console(quiet=True)
    fitting.fit(wanted, RunOptions(), console)
    document["cascade"] = {"accepted": False}
    with pytest.raises(UserError, match="busy"):
        fitting.fit(wanted, RunOptions(), console)


def test_its_run_stands_below_that_of_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal.modelfolder, "fingerprint", lambda folder: "f")
    monkeypatch.chdir(tmp_path)
    case: Any = SimpleNamespace(
        source=tmp_path, table=SimpleNamespace(fingerprint="d"), metric="accuracy", console=SimpleNamespace(warn=None)
    )
    serving: Any = None
    path = tmp_path / "joined"
    with open_run(path, experiment="fits", name="joined", method="fit") as log:
        runs = journal.Journal(case, serving, path, log)
        runs.child(path / "cascade-run", "cascade", "student", "cascade").finish()
    start = read(path / "cascade-run").start
    assert (start["name"], start["experiment"], start["tags"]["compress.method"]) == (
        "joined/cascade", "fits", "cascade"
    )  # fmt: skip
    assert start["parent"]["key"] == read(path).start["key"]

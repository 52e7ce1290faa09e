"""The cascade of a fit: what it is asked for, and what may not be claimed of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.cascade.request import CascadeRequest
from compress.fit import joined_family


def _make_model(folder: Path) -> Any:
    return SimpleNamespace(name=folder.name, folder=folder)


def test_models_that_the_rows_chose_are_joined_without_a_confidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[CascadeRequest] = []

    def join(request: CascadeRequest, output: Path) -> dict[str, Any]:
        asked.append(request)
        return {"folder": str(output), "certificate": None}

    monkeypatch.setattr(joined_family, "join_models", join)
    monkeypatch.setattr(joined_family, "find_front", list)
    monkeypatch.setattr(joined_family, "settings_for", lambda recipe, table: {})
    monkeypatch.setattr(joined_family.atomic, "verify_folder", lambda folder: [])
    fast, best = (_make_model(tmp_path / name) for name in ("fast", "best"))
    case: Any = SimpleNamespace(
        table=None, recipe=None, max_length=16, bounds=SimpleNamespace(max_drop=1.0),
        console=SimpleNamespace(note=lambda text: None), options=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    nothing: Any = None
    journal: Any = SimpleNamespace(path=tmp_path)
    found = joined_family.join_family(case, nothing, journal, [fast], best, met=True)
    assert not found["accepted"]
    (request,) = asked
    assert list(request.models) == ["fast", "best", "parent"]
    assert request.accepted == ["best"]
    assert request.rows_chose_models

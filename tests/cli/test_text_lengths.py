"""The length that a run reads where no flag says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compress.cli import _lengths
from compress.modelfolder import folder, resolve

LONGEST = {"long": 512, "short": 128}


@pytest.mark.parametrize("order", [["long", "short"], ["short", "long"]])
def test_the_runs_of_a_sweep_over_teachers_read_what_all_of_them_read(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "resolve", str)
    found: Any = lambda name: SimpleNamespace(  # noqa: E731
        is_embedder=False, heads={"task": None}, longest_text=LONGEST[name], config=SimpleNamespace(max_positions=512)
    )
    monkeypatch.setattr(folder, "inspect", found)
    content = {"data": {"max_length": 64}, "sweep": {"teacher": order}, "stages": [{}]}
    loaded: Any = SimpleNamespace(content=content)
    (edit,) = _lengths.read_as_long(loaded, "tinybert", {"teacher": order[0]})
    assert (edit.path, edit.value, edit.origin) == ("data.max_length", 128, "the longest text that short reads")

"""How few modules go back to float, and how little is measured to find it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.errors import ExitCode, UserError
from compress.stages.quantize.sensitivity import Damage, fewest_back
from compress.stages.quantize.stage import Stage


@given(size=st.integers(2, 90), data=st.data())
def test_as_few_as_hold_the_bound_are_found_in_a_few_measurements(size: int, data: st.DataObject) -> None:
    needed = data.draw(st.integers(0, size - 1))
    order = [str(i) for i in range(size)]
    asked: list[int] = []

    def cost(names: frozenset[str]) -> float:
        assert names == frozenset(order[: len(names)]), "the most damaging go first"
        asked.append(len(names))
        return float(needed - len(names))

    back, tried = fewest_back(order, cost, 0.0)
    assert back == frozenset(order[:needed])
    assert [t.count for t in tried] == asked
    assert len(asked) == len(set(asked)) <= 2 * math.log2(size) + 3


def test_where_no_quantized_module_is_cheap_enough() -> None:
    with pytest.raises(UserError, match=r"no number of fallback modules keeps the loss within 0\.5 points") as caught:
        fewest_back(["a", "b", "c"], lambda names: 3.0 - len(names) / 4, 0.5)
    assert caught.value.why == "the smallest measured loss is 2.50"
    assert caught.value.code == ExitCode.REFUSED


@pytest.mark.parametrize(
    ("sensitivity", "points", "scans", "back"),
    [(False, 0.0, 0, set()), (True, 0.0, 1, set()), (False, 2.0, 1, {"worst"})],
)
def test_modules_are_looked_at_where_somebody_asked_or_some_must_go(
    monkeypatch: pytest.MonkeyPatch, sensitivity: bool, points: float, scans: int, back: set[str]
) -> None:
    stage: Any = object.__new__(Stage)
    stage.spec = SimpleNamespace(max_drop=0.5, sensitivity=sensitivity)
    seen: list[str] = []
    monkeypatch.setattr(Stage, "_cost", lambda *_: lambda names: 0.0 if names else points)
    damage = Damage({"best": 0.1, "worst": 0.9, "other": 0.2}, 1.0)
    monkeypatch.setattr(Stage, "_damage", lambda *_: seen.append("scan") or damage)
    _, found, tried = stage._looked_at(None, None, None, None, [])
    assert (len(seen), found) == (scans, back)
    assert tried[0].count == 0

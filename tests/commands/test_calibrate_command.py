"""`compress calibrate`: what it rejects, and that a temperature that helps nobody is not written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.commands import calibrate as command
from compress.contracts import RunOptions
from compress.data.tasks import task_of
from compress.encoder.config.heads import HeadConfig
from compress.errors import ExitCode, UserError


def confident(rows: int, scale: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of three classes that are too large by `scale`, and labels drawn by what they should be."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(rows, 3))
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    gold = (random.random((rows, 1)) > shares.cumsum(1)).sum(1)
    return scale * logits, gold


def test_the_temperature_undoes_the_scale() -> None:
    logits, gold = confident(2000, 3.0, 0)
    assert command._fit(logits, gold, 1.0, "d/validation") == pytest.approx(3.0, rel=0.15)


def test_probabilities_that_fit_already_are_left_alone() -> None:
    logits, gold = confident(400, 1.0, 0)
    with pytest.raises(UserError, match="d/validation: no temperature improves") as error:
        command._fit(logits, gold, 1.0, "d/validation")
    assert error.value.code == ExitCode.REFUSED


def test_test_rows_must_not_lose() -> None:
    def told(before: float, after: float) -> dict[str, dict[str, float]]:
        values = {"before": before, "after": after}
        return {name: {"negative_log_likelihood": value} for name, value in values.items()}

    command._require_no_loss(told(0.5, 0.5), "d/test", 2.0)
    with pytest.raises(UserError, match=r"0\.5000 before, 0\.5001 at temperature 2\.000") as error:
        command._require_no_loss(told(0.5, 0.5001), "d/test", 2.0)
    assert error.value.code == ExitCode.REFUSED


@pytest.mark.parametrize(("settings", "found"), [({}, 1.0), ({"temperature": None}, 1.0), ({"temperature": 2}, 2.0)])
def test_a_model_without_a_temperature_has_one(settings: dict[str, Any], found: float) -> None:
    info: Any = SimpleNamespace(meta=SimpleNamespace(task_settings=settings))
    assert command._temperature(info) == found


def calibrate(monkeypatch: pytest.MonkeyPatch, output: Path, kind: str, rows: dict[str, int]) -> None:
    """A model for this kind of task and splits of so many rows; nothing may be encoded."""
    head, problem = task_of(kind).head
    labels = 1 if problem == "regression" else 2
    predictor = SimpleNamespace(
        head=HeadConfig(head, labels=labels, problem=problem), label_names=("a", "b"), task=task_of(kind)  # pyright: ignore
    )  # fmt: skip
    table = SimpleNamespace(task=kind, split=lambda name: range(rows[name]), display_name="d")
    recipe = SimpleNamespace(data=SimpleNamespace(max_length=8))
    monkeypatch.setattr(command, "resolve", Path)
    monkeypatch.setattr(command.modelfolder, "inspect", lambda _: SimpleNamespace(config=None))
    monkeypatch.setattr(command, "sentence_files", lambda *_: {})
    monkeypatch.setattr(command, "open_labelled", lambda *_: (recipe, table))
    monkeypatch.setattr(command, "Predictor", lambda *_, **__: predictor)
    command.calibrate("m", "validation", RunOptions(output=output))


def test_what_cannot_be_calibrated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(UserError, match="temperature scaling does not support regression"):
        calibrate(monkeypatch, output, "regression", {})
    few = {"validation": command.FEWEST_ROWS - 1, "test": 1000}
    with pytest.raises(UserError, match=f"too few validation rows.*required: {command.FEWEST_ROWS}"):
        calibrate(monkeypatch, output, "classification", few)
    with pytest.raises(UserError, match="exists already"):
        calibrate(monkeypatch, tmp_path, "classification", few)
    assert not list(tmp_path.iterdir()), "nothing is written"
    (tmp_path / "out-reliability.svg").write_text("of an earlier run", encoding="utf-8")
    with pytest.raises(UserError, match=r"out-reliability\.svg: exists already; name another --output"):
        calibrate(monkeypatch, output, "classification", few)

"""The plot of a run calls its models as the table does: the parent of a model that was not taught is no teacher."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.measure.calibration import FILE, calibration
from compress.measure.subject import shown_name
from compress.report.rows import Reference
from compress.run.publish import _draw


def measured(role: str, name: str) -> Any:
    random = np.random.default_rng(0)
    logits, gold = random.normal(size=(200, 2)), random.integers(0, 2, 200)
    found = calibration(logits, gold, 1.0, (logits, gold), bootstrap=100)
    subject = SimpleNamespace(role=role, name=name)
    context = {"dataset": "opinions/test"}
    return SimpleNamespace(subject=subject, calibration=found, measurement=SimpleNamespace(context=context))


@pytest.mark.parametrize("reference", ["teacher", "parent"])
def test_the_reference_has_its_name_in_the_plot(reference: Reference, tmp_path: Path) -> None:
    logged: list[Path] = []
    run: Any = SimpleNamespace(folder=tmp_path, artifact=logged.append)
    models = [measured("teacher", "teacher"), measured("student", "int8")]
    _draw(run, models[1], models, reference)
    assert logged == [tmp_path / FILE]
    drawn = (tmp_path / FILE).read_text(encoding="utf-8")
    assert f">{reference}<" in drawn
    assert ">int8<" in drawn
    assert ("teacher" in drawn) == (reference == "teacher")


def test_a_name_of_one_s_own_stays() -> None:
    assert shown_name(measured("teacher", "minilm").subject, "parent") == "minilm"
    assert shown_name(measured("student", "teacher").subject, "parent") == "teacher"

"""`compress benchmark`: whether texts or random tokens are timed, and what each model is compared with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compress.commands import benchmark as command
from compress.contracts import Measurement, Override, RunOptions
from compress.data.tables.table import Rows
from compress.encoder.config.heads import HeadConfig
from compress.errors import UserError

DATA = Override("data.source", "x.csv", "--data x.csv")


def has_data(*overrides: Override, length: int | None = None, split: str | None = None) -> bool:
    return command._has_data(length, split, RunOptions(overrides=overrides))


def test_texts_are_timed_where_there_is_data() -> None:
    assert has_data(DATA)
    assert has_data(DATA, split="validation")
    assert not has_data()
    assert not has_data(Override("seed", 1, "--seed 1"), length=64)
    with pytest.raises(UserError, match="--length: cannot be combined with --data"):
        has_data(DATA, length=64)


@pytest.mark.parametrize(
    ("flags", "blamed"),
    [({"split": "test"}, "--split"), ({"override": Override("data.task", "x", "--task x")}, "--task x")],
)
def test_options_of_data_without_data(flags: dict[str, Any], blamed: str) -> None:
    overrides = [flags.pop("override")] if "override" in flags else []
    with pytest.raises(UserError, match=f"{blamed}: only applies with --data"):
        has_data(*overrides, **flags)


class Console(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(slow_progress=None, notes=[])

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_the_first_model_is_what_the_others_are_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [SimpleNamespace(measurement=Measurement({"ms": ms}, {"device": "cpu"})) for ms in (4.0, 2.0)]
    monkeypatch.setattr(command, "Console", lambda **_: Console())
    monkeypatch.setattr(command, "resolve", Path)
    monkeypatch.setattr(command, "_on_random_tokens", lambda *_: ([], [], None))
    monkeypatch.setattr(command, "measure_cost", lambda *_: costs)
    monkeypatch.setattr(command, "print_measured", lambda *_: None)
    monkeypatch.setattr(
        command, "cost_ratios",
        lambda ours, first: {"speedup": first.measurement.values["ms"] / ours.measurement.values["ms"]},
    )  # fmt: skip
    first, second = command.benchmark(["a", "b"], 1, None, 5, None, RunOptions())
    assert (first.subject.role, second.subject.role) == ("teacher", "student")
    assert (dict(first.measurement.values), dict(second.measurement.values)) == (
        {"ms": 4.0}, {"ms": 2.0, "speedup": 2.0}
    )  # fmt: skip


def predictor(length: int = 32, head: str = "classification") -> Any:
    config = SimpleNamespace(vocabulary=50)
    return SimpleNamespace(
        max_length=length, config=config, head=HeadConfig(head, labels=2), label_names=("a", "b"),  # pyright: ignore
        folder=Path("m"), encode_rows=lambda rows, max_length: (len(rows), max_length),
        task=SimpleNamespace(label_free=False),
    )  # fmt: skip


def test_random_tokens_are_as_long_as_every_model_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = iter((32, 16))
    monkeypatch.setattr(command, "require_fixed_costs", lambda _: None)
    monkeypatch.setattr(command, "_predictor", lambda *_: predictor(next(lengths)))
    console: Any = Console()
    found, samples, plan = command._on_random_tokens(
        ["a", "b"], [Path("a"), Path("b")], ["a", "b"], 4, None, 7, RunOptions(), console
    )
    assert (len(found), plan.batch, plan.length, plan.repeats) == (2, 4, 16, 7)
    assert all(sample.lengths.max() <= 16 for sample in samples)
    assert console.notes == ["timing a, b, 16 tokens"]


def test_texts_are_those_of_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [f"text {i}" for i in range(600)]
    rows = Rows({"text": pa.chunked_array([pa.array(many)])}, np.zeros(600, np.int64), np.arange(600))
    splits = {"validation": rows}
    table = SimpleNamespace(
        task="classification", display_name="d", measured_fingerprint="f", split=splits.__getitem__, settings={}
    )
    recipe = SimpleNamespace(data=SimpleNamespace(max_length=24))
    opened: dict[str, Any] = {}
    monkeypatch.setattr(command, "inspect", lambda _: None)
    monkeypatch.setattr(command, "open_labelled", lambda *_, **how: (opened.update(how), (recipe, table))[1])
    monkeypatch.setattr(command, "settings_for", lambda *_: {})
    monkeypatch.setattr(command, "choose_calls", lambda _: 1)
    monkeypatch.setattr(command, "sample_texts", lambda rows, **how: how)
    monkeypatch.setattr(command, "_predictor", lambda *_, **__: predictor())
    monkeypatch.setattr(command, "sample_examples", lambda encoded, count, **_: [(*one, count) for one in encoded])
    console: Any = Console()
    _, samples, plan = command._on_texts([Path("a")], ["a"], "validation", 1, 5, RunOptions(), console)
    texts: Any = plan.texts
    assert opened == {"bare": True, "measured": "validation"}, "rows without labels can be timed"
    assert (texts["data"], texts["digest"], texts["max_length"]) == ("d/validation", "f", 24)
    assert samples == [(plan.throughput_rows, 24, plan.throughput_rows)], "throughput is that of evenly spaced rows"
    assert console.notes == ["timing a on texts of d/validation"]
    monkeypatch.setattr(command, "_predictor", lambda *_, **__: predictor(head="token_classification"))
    with pytest.raises(UserError, match="this data is for classification, and the model"):
        command._on_texts([Path("a")], ["a"], "validation", 1, 5, RunOptions(), console)

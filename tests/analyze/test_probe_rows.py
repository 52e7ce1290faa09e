"""What linear probes read of each layer: a word's token, or the mean of a text; and what they report."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from compress.analyze import probes
from compress.analyze.subject import Analysis, table_of
from compress.contracts import RunOptions
from compress.errors import UserError
from evaluation.quality.intervals import Interval
from evaluation.representation.probes import ProbeResult

IDS = torch.tensor([2, 10, 11, 3, 2, 12, 3])  # [CLS] 10 11 [SEP], [CLS] 12 [SEP]
ENDS = torch.tensor([0, 4, 7])
STATES = torch.arange(7.0)[:, None]


def subject(labels: list[int], batches: int = 1) -> Any:
    """A model with two layers whose states are the places of the tokens, and ten times that."""
    batch = SimpleNamespace(labels=torch.tensor(labels), input_ids=IDS, cu_seqlens=ENDS)
    given = [(batch, [STATES, 10 * STATES])] * batches
    return SimpleNamespace(layers=("emb", "0"), states=lambda _: iter(given))


def rows(monkeypatch: pytest.MonkeyPatch, task: str, labels: list[int], batches: int = 1) -> Any:
    monkeypatch.setattr(probes, "encode_split", lambda *_: None)
    table: Any = SimpleNamespace(task=task)
    return probes._probe_rows(subject(labels, batches), table, "train")


def test_a_word_is_read_at_its_labelled_token(monkeypatch: pytest.MonkeyPatch) -> None:
    states, classes, kinds = rows(monkeypatch, "token-classification", [-100, 1, -100, -100, -100, 0, -100])
    assert [layer[:, 0].tolist() for layer in states] == [[1.0, 5.0], [10.0, 50.0]]
    assert (classes.tolist(), kinds) == ([1, 0], [10, 12]), "the control's kinds are the words themselves"


def test_a_text_is_the_mean_of_its_tokens_and_known_by_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    states, classes, kinds = rows(monkeypatch, "classification", [1, 0], 2)
    assert states[0][:, 0].tolist() == [1.5, 5.0] * 2
    assert (classes.tolist(), kinds) == ([1, 0] * 2, [11, 12] * 2)
    states, classes, kinds = rows(monkeypatch, "classification", [-100, 0])
    assert (states[0][:, 0].tolist(), classes.tolist(), kinds) == ([5.0], [0], [12]), "unlabelled texts are left out"


def test_words_are_read_until_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PROBE_TOKENS", 4)
    _, classes, _ = rows(monkeypatch, "token-classification", [-100, 1, -100, -100, -100, 0, -100], batches=9)
    assert len(classes) == 4


def test_a_row_for_each_layer_with_its_control(monkeypatch: pytest.MonkeyPatch) -> None:
    table: Any = SimpleNamespace(task="classification", display_name="x")
    accuracies = iter((0.9, 0.6))

    def probe(*_: Any) -> ProbeResult:
        value = next(accuracies)
        interval, control = Interval(value, value - 0.1, value + 0.1, 9, 9), Interval(0.5, 0.4, 0.6, 9, 9)
        return ProbeResult(interval, control, 0.55)

    monkeypatch.setattr(probes, "table_of", lambda *_: table)
    monkeypatch.setattr(probes, "_probe_rows", lambda *_: ([0, 0], np.zeros(1), []))
    monkeypatch.setattr(probes, "probe", probe)
    found, console = Analysis(), SimpleNamespace()
    probes.probe_layers(subject([0]), "x", RunOptions(), console, found)  # type: ignore[arg-type]
    assert found.tables["probe-x"][1][1] == [
        ("emb", "90.0 [80.0, 100.0]", "50.0", "+40.0", "55.0"), ("0", "60.0 [50.0, 70.0]", "50.0", "+10.0", "55.0"),
    ]  # fmt: skip
    assert found.values["probe/x_layer_0"] == 0.6
    assert found.values["selectivity/x_layer_emb"] == pytest.approx(0.4)
    assert "probe-x" in found.plots
    accuracies = iter((0.8, 0.7))
    probes.probe_layers(subject([0]), "y/x", RunOptions(), console, found)  # type: ignore[arg-type]
    assert [key for key in found.tables if key in found.plots] == ["probe-x", "probe-x-2"]
    assert (found.values["probe/x_layer_0"], found.values["probe/x-2_layer_0"]) == (0.6, 0.7), "both are kept"
    table.display_name, accuracies = "hf:glue/sst2", iter((0.8, 0.7))
    probes.probe_layers(subject([0]), "hf:glue/sst2", RunOptions(), console, found)  # type: ignore[arg-type]
    assert not [key for key in found.plots if "/" in key], "files in the folder, not in one below it"
    assert "probe/hf:glue/sst2_layer_0" in found.values
    table.task = "regression"
    with pytest.raises(UserError, match="--probe x: a probe needs one class per word or per row, not regression"):
        probes.probe_layers(subject([0]), "x", RunOptions(), console, found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "no such file or folder: '{file}'"),
        ("a,b\nx y,z w\nq r,t u\n", "cannot infer the text column; rename it in the data; the columns are: a, b"),
    ],
)
def test_an_error_about_the_data_of_a_probe_names_the_flag(content: str | None, line: str, tmp_path: Path) -> None:
    file = tmp_path / "two.csv"
    if content is not None:
        file.write_text(content)
    one: Any = SimpleNamespace(loaded=SimpleNamespace(config=SimpleNamespace(max_positions=64)))
    console: Any = SimpleNamespace()
    with pytest.raises(UserError) as caught:
        table_of("--probe", str(file), one, RunOptions(), console)
    assert str(caught.value).startswith(f"--probe {file}: " + line.format(file=file))

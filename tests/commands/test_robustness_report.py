"""`compress evaluate --robustness`: the same mistakes for every model, the table, the files, the folder."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compress.commands import robustness
from compress.commands.robustness import (
    RATES,
    Curve,
    check_disturbance,
    choose_folder,
    curve,
    difference,
    make_table,
    require_metric,
)
from compress.data.tables.table import Rows
from compress.errors import ExitCode, UserError
from evaluation.quality.draws import of_mean
from evaluation.quality.intervals import Interval

ROWS = 40


def some_rows() -> Rows:
    column = pa.chunked_array([pa.array([f"a rather good film number {i}" for i in range(ROWS)], pa.large_string())])
    return Rows({"text": column}, np.zeros(ROWS, np.int64), np.arange(1, ROWS + 1))


class Reader:
    """Stands for a predictor: right on rows whose letters are as they were, and knows what it was given."""

    def __init__(self, name: str, defined: bool = True) -> None:
        self.folder, self.label_names, self.read, self.defined = Path(name), ("a", "b"), [], defined
        self.task: Any = SimpleNamespace(
            choose_metrics=lambda _: ("accuracy",), score=self.score, is_search=lambda _: False
        )

    def encode_rows(self, rows: Rows, max_length: int) -> list[str]:
        self.read.append(rows.texts)
        return rows.texts

    def logits(self, examples: list[str], told: Any) -> np.ndarray:
        return np.array([text == right for text, right in zip(examples, some_rows().texts, strict=True)])

    def score(self, logits: np.ndarray, *_: Any) -> Any:
        defined = self.defined or logits.all()
        return SimpleNamespace(metrics={"accuracy": of_mean(logits), "other": of_mean(logits)} if defined else {})


def measured(reader: Reader) -> Curve:
    return curve(str(reader.folder), reader, some_rows(), "typos", max_length=32, bootstrap=50)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def two() -> tuple[Reader, Reader, list[Curve]]:
    ours, theirs = Reader("ours"), Reader("theirs")
    return ours, theirs, [measured(ours), measured(theirs)]


def test_both_models_read_the_same_mistakes_and_more_at_each_rate(two: tuple[Reader, Reader, list[Curve]]) -> None:
    ours, theirs, _ = two
    assert ours.read == theirs.read
    assert ours.read[0] == some_rows().texts, "the first is undisturbed"
    changed = [sum(a != b for a, b in zip(texts, ours.read[0], strict=True)) for texts in ours.read]
    assert len(changed) == len(RATES)
    assert changed == sorted(changed)
    assert changed[-1] > changed[1] > 0


def test_a_curve_falls_and_says_by_how_much(two: tuple[Reader, Reader, list[Curve]]) -> None:
    _, _, (one, other) = two
    values = [point.values["accuracy"].value for point in one.points]
    assert values[0] == 1.0
    last = one.points[-1]
    assert last.lost is not None
    assert last.lost.value == pytest.approx(1.0 - values[-1])
    assert all("other" not in point.values for point in one.points), "metrics that nobody chose are left out"
    apart = difference([one, other], ROWS, 50)
    assert apart is not None
    assert [found.value for _, found in apart.points if found is not None] == [0.0] * len(RATES)
    assert difference([one], ROWS, 50) is None


def test_the_table_has_a_row_for_each_rate(two: tuple[Reader, Reader, list[Curve]]) -> None:
    apart = difference(two[2], ROWS, 50)
    assert apart is not None
    heads, rows = make_table([one.as_json() for one in two[2]], apart.as_json())
    assert heads == (
        "typo noise", "ours", "lost, points", "theirs", "lost, points", "difference, points",
    )  # fmt: skip
    assert [row[0] for row in rows] == ["0 %", "2 %", "5 %", "10 %", "20 %"]
    assert rows[0] == (
        "0 %",
        "100.00 % [91.19, 100.00]",
        "",
        *["100.00 % [91.19, 100.00]", ""],
        "+0.00 [-8.76, +8.76]",
    )
    assert rows[-1][2].startswith(f"{100 * (1 - two[2][0].points[-1].values['accuracy'].value):.2f} [")


def test_texts_alone_are_one_line_for_an_embedding_model() -> None:
    with pytest.raises(UserError, match="--robustness: texts alone have no metric that typos could lower; give --data"):
        require_metric("embedding", some_rows())
    require_metric("classification", some_rows())


def test_a_correlation_is_no_percentage() -> None:
    bounds = {"value": 0.81234, "low": 0.8, "high": 0.82}
    point = {"rate": 0.0, "values": {"spearman": bounds}, "lost": None}
    _, rows = make_table([{"name": "a", "metric": "spearman", "points": [point]}], None)
    assert rows == [("0 %", "0.812 [0.800, 0.820]", "")]
    found = Curve(
        "a", Path("a"), "spearman", [robustness.Point(0.0, {"spearman": Interval(0.8, 0.7, 0.9, 40, 50)}, None)]
    )
    assert robustness._plotted(found) == [(0.0, 0.8, 0.7, 0.9)]


def test_a_metric_that_is_undefined_on_disturbed_rows_is_named_so() -> None:
    one, whole = measured(Reader("x", defined=False)), measured(Reader("y"))
    apart = difference([one, whole], ROWS, 50)
    assert apart is not None
    _, rows = make_table([one.as_json(), whole.as_json()], apart.as_json())
    assert rows[0][1] == "100.00 % [91.19, 100.00]"
    assert (rows[-1][1], rows[-1][2], rows[-1][-1]) == ("undefined", "", "undefined")
    assert len(robustness._plotted(one)) == 1
    assert one.as_json()["points"][-1] == {"rate": 0.2, "values": {}, "lost": None}
    assert apart.as_json()["points"][-1] == {"rate": 0.2, "value": None}


def test_figures_have_the_rate_in_their_name(two: tuple[Reader, Reader, list[Curve]], tmp_path: Path) -> None:
    logged: dict[str, float] = {}
    run: Any = SimpleNamespace(params=lambda _: None, metrics=logged.update, artifact=lambda _: None)
    robustness._log(run, two[2], difference(two[2], ROWS, 50), {"disturbance": "typos", "rows": ROWS}, tmp_path)
    assert logged["robustness/typos_accuracy_0pct"] == 1.0
    assert "robustness/typos_accuracy_lost_0pct" not in logged, "nothing can be lost there"
    assert logged["robustness/typos_accuracy_lost_20pct"] == pytest.approx(
        1 - logged["robustness/typos_accuracy_20pct"]
    )
    assert logged["robustness/typos_accuracy_difference_2pct"] == 0.0
    assert logged["robustness/typos_accuracy_difference_2pct_high"] > 0.0
    assert json.dumps([one.as_json() for one in two[2]])


def test_a_misspelt_disturbance_is_answered_with_the_nearest() -> None:
    assert check_disturbance("typos") == "typos"
    with pytest.raises(UserError, match="unknown disturbance 'typo'; did you mean 'typos'"):
        check_disturbance("typo")


def test_a_folder_that_holds_something_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = Path("runs/typos-a-student")
    assert choose_folder(None, "a/student", "typos") == plain
    assert not plain.parent.exists(), "a command that fails later leaves no folder"
    plain.mkdir(parents=True)
    assert choose_folder(None, "a/student", "typos") == plain, "the next free one is taken when it is written"
    assert choose_folder(plain, "a", "typos") == plain, "an empty folder that is named is taken"
    (plain / "x").write_text("", encoding="utf-8")
    for taken in (plain, plain / "x"):
        with pytest.raises(UserError, match="the folder is not empty") as refused:
            choose_folder(taken, "a", "typos")
        assert refused.value.code == ExitCode.REFUSED

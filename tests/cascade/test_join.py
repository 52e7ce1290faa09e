"""Models joined into a cascade: what is chosen, measured and written, and what makes none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cascade.conftest import ROWS, Maker, write_cascade

import compress
from compress.cascade import certificate, run
from compress.cascade.candidates import find_parent
from compress.cascade.certificate import describe_choice, describe_guarantee
from compress.cascade.request import CascadeRequest
from compress.encoder.config.encoder import HeadConfig
from compress.encoder.config.exits import ExitConfig
from compress.encoder.reshape.early_exits import add_exits
from compress.errors import Stopped, UserError
from compress.modelfolder import cascade as cascades
from compress.modelfolder.folder import load_model, save_model
from compress.storage.signals import StopFlag
from evaluation.thresholds import CascadeChoice, Selection


@pytest.fixture(autouse=True)
def known_latencies(latencies: dict[str, float]) -> dict[str, float]:
    return latencies


def test_the_small_model_answers_what_it_is_sure_of(
    tmp_path: Path, small: Path, parent: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "cascade"
    made = compress.cascade([parent, small], str(data), output=output, max_drop=10, device="cpu", quiet=True)
    assert capsys.readouterr().out == ""
    found = made["certificate"]
    assert made["chosen"] == ["small", "parent"], "sorted by latency, whatever the order given"
    assert found == json.loads((output / "certificate.json").read_text())
    assert found["status"] == "certified"
    first, last = found["stages"]
    assert 0.4 <= first["share"] <= 0.6
    assert first["rows"] + last["rows"] == ROWS == found["rows"]
    assert 0.3 < first["threshold"] < 1
    assert last["threshold"] is None
    chosen = found["chosen_on"]
    assert (chosen["split"], chosen["rows"], chosen["tested_on"]) == ("validation", ROWS, 28)
    assert chosen["p_value"] <= 0.1
    assert found["bounds"] == {"max_drop": 10, "confidence": 90}
    assert found["difference"]["value"] >= -0.05
    assert found["size_mb"] > found["parent"]["size_mb"]
    kept = cascades.read(output)
    assert (kept.meta.method, kept.meta.max_length) == ("cascade", 16)
    assert [parent.name for parent in kept.meta.lineage] == ["small", "parent"]
    card = (output / "README.md").read_text()
    assert "A cascade of 2 models" in card
    assert "compress predict &lt;this folder&gt;" in card or "compress predict <this folder>" in card
    assert "with 90 % confidence, at most 10 points of accuracy are lost on texts like the validation rows, if" in card
    measured = made.model.evaluate(str(data), against=parent, device="cpu", quiet=True, bootstrap=100)
    values = measured.metrics["cascade"]
    assert values["quality/accuracy"] == found["quality"]["value"]
    assert values["size/disk_mb"] == found["size_mb"]


def test_another_main_metric_decides_on_test_rows_only(
    tmp_path: Path, small: Path, parent: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how: dict[str, Any] = {"max_drop": 10, "device": "cpu", "metric": "f1_macro"}
    made = compress.cascade([small, parent], str(data), output=tmp_path / "cascade", **how)
    told = capsys.readouterr()
    assert "parent (parent)" not in told.out + told.err, "as the models of a fit are called"
    said = " ".join(told.err.split())
    assert "thresholds are chosen by the accuracy lost on validation rows; the loss of macro F1 is measured" in said
    found = made["certificate"]
    assert found["quality"]["metric"] == "f1_macro"
    lines = certificate.sentences(found)
    assert lines[0].startswith("certified: ")
    assert lines[0].endswith("of macro F1 lost on the test rows, within the bound of 10 points")
    assert "at most 10 points of accuracy are lost" in lines[-2]


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_a_signal_stops_it_and_nothing_is_left(
    tmp_path: Path, small: Path, parent: Path, data: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """place: of the progress report that finds the signal; the first are of scoring on validation and on test rows."""
    calls = iter([*[None] * place, "SIGTERM"])
    monkeypatch.setattr(StopFlag, "requested", property(lambda flag: next(calls, None)))
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        compress.cascade([small, parent], str(data), output=tmp_path / "new", max_drop=10, device="cpu", quiet=True)
    assert not list(tmp_path.glob("*new*"))


@pytest.mark.thorough
def test_a_cascade_is_timed_and_compared_as_any_model(
    tmp_path: Path, small: Path, parent: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_cascade(tmp_path / "both", [small, parent], [0.6])
    how: dict[str, Any] = {"device": "cpu", "quiet": True}
    timed = compress.load(folder, device="cpu").benchmark(parent, data=str(data), repeats=5, quiet=True)
    assert set(timed.metrics) == {"both", "parent"}
    assert timed.metrics["both"]["size/disk_mb"] > timed.metrics["parent"]["size/disk_mb"]
    compared = compress.compare(folder, parent, data=str(data), against=parent, **how)
    assert set(compared.metrics) == {"both", "parent"}


def test_the_single_model_where_no_cascade_is_faster(
    tmp_path: Path, small: Path, parent: Path, data: Path, known_latencies: dict[str, float]
) -> None:
    known_latencies["small"] = 9.5
    made = compress.cascade([small, parent], str(data), output=tmp_path / "one", max_drop=0, device="cpu", quiet=True)
    assert (made["is_cascade"], made["chosen"], made["certificate"]) == (False, ["parent"], None)
    assert made.model.predict("some text")[0].as_json() == compress.load(parent).predict("some text")[0].as_json()


def test_a_bound_that_the_test_rows_break(
    tmp_path: Path, small: Path, parent: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {"status": "exceeded", "quality": {"metric": "f1_macro"}}
    found["difference"] = {"value": -0.07, "low": -0.12, "high": -0.02}
    document = {"folder": "cascade", "is_cascade": True, "chosen": ["small", "parent"], "certificate": found}
    monkeypatch.setattr(run, "join_models", lambda request, output, open_run: document)
    with pytest.raises(UserError, match=r"on the test rows: 7\.00 points of macro F1, bound 5") as caught:
        compress.cascade([small, parent], str(data), output=tmp_path / "new", max_drop=5, device="cpu", quiet=True)
    assert caught.value.code == 3
    assert getattr(caught.value, "result")["certificate"] == found  # noqa: B009  # set by the Python API
    found["difference"]["value"] = None
    with pytest.raises(UserError, match="macro F1 is undefined there, bound 5"):
        compress.cascade([small, parent], str(data), output=tmp_path / "b", max_drop=5, device="cpu", quiet=True)


def test_what_makes_no_cascade(tmp_path: Path, small: Path, parent: Path, data: Path, make_folder: Maker) -> None:
    other = make_folder("other", labels=("a", "b", "c"))
    scores = make_folder("scores", labels=("score",), head=HeadConfig("classification", labels=1, problem="regression"))
    both = write_cascade(tmp_path / "both", [small, parent], [0.5])
    twin = make_folder("twin", seed=1, layers=3)
    (data / "same").mkdir()
    for split in ("train", "validation", "test"):
        (data / "same" / f"{split}.jsonl").write_text((data / "test.jsonl").read_text())
    for models, rows, message in (
        ([parent], data, "a cascade needs at least two models"),
        ([parent, parent], data, "the same model is given twice"),
        ([parent, twin], data, "parent and twin are the same model|twin and parent are the same model"),
        ([small, parent, other], data, "predict different labels"),
        ([scores, parent], data, "cascades do not support regression, nor do early exits"),
        ([both, parent], data, "this is a cascade of several models"),
        ([small, parent], data / "same", "test rows are also validation rows"),
    ):
        with pytest.raises(UserError, match=message):
            compress.cascade(models, str(rows), output=tmp_path / "new", device="cpu", quiet=True)
    for drop in (-1, float("nan")):
        with pytest.raises(UserError, match=r"max_drop: .*points is not possible"):
            compress.cascade([small, parent], str(data), output=tmp_path / "new", max_drop=drop, device="cpu")
    assert not (tmp_path / "new").exists()


def test_the_guarantee_says_whether_the_bound_is_proven() -> None:
    found: dict[str, Any] = {
        "status": "certified",
        "bounds": {"max_drop": 0.5, "confidence": None},
        "quality": {"metric": "f1_macro"},
        "chosen_on": {"rows": 872, "split": "validation"},
        "difference": {"value": -0.001, "low": -0.004, "high": 0.002},
    }
    assert "at most 0.40 points are lost, so the bound of 0.5 points is proven at this level" in (
        describe_guarantee(found)
    )
    found["difference"] = {"value": -0.001, "low": -0.006, "high": 0.004}
    said = describe_guarantee(found)
    assert "-0.10 [-0.60, +0.40] points of macro F1 (paired" in said
    assert "met on these rows and not proven for others" in said
    assert said.endswith("chosen on 872 validation rows before a test row was read")
    found["bounds"]["confidence"] = 90.0
    assert (
        "at most 0.60 points are lost, so the test rows alone do not prove the bound of 0.5 points at this level; "
        in (describe_guarantee(found))
    )
    assert "its 90 % confidence comes from the validation rows. " in describe_guarantee(found)
    better = {"value": 0.02, "low": 0.0123, "high": 0.03}
    assert "on texts like these at least 1.23 points are gained, so the bound" in describe_guarantee(
        {**found, "difference": better}
    )
    found |= {"chosen_on": {"rows": 872, "split": "validation", "shared_rows": 3}, "rows": 1821}
    assert describe_guarantee(found).endswith(
        "chosen on 872 validation rows before a test row was read, except that 3 test rows of 1,821 were among them"
    )


@pytest.mark.parametrize(
    ("status", "value", "said"),
    [
        ("certified", -0.0345, "3.45 points of macro F1 lost on the test rows, within the bound of 8 points"),
        ("certified", 0.0, "0.00 points of macro F1 lost on the test rows, within the bound of 8 points"),
        ("certified", 0.005, "0.50 points of macro F1 gained on the test rows, within the bound of 8 points"),
        ("exceeded", -0.0912, "9.12 points of macro F1 lost on the test rows, above the bound of 8 points"),
        ("exceeded", None, "the loss of macro F1 on the test rows is undefined; the bound is 8 points"),
    ],
)
def test_what_was_lost_stands_beside_the_bound(status: str, value: float | None, said: str) -> None:
    found = {
        "status": status, "bounds": {"max_drop": 8.0}, "quality": {"metric": "f1_macro"}, "difference": {"value": value}
    }  # fmt: skip
    assert certificate._describe_loss(found) == said


def test_the_speed_is_the_one_of_the_table() -> None:
    """It is the ratio of the median rounds, not of the means, and left out where it is not known."""
    latency = {"mean": 10.0, "p50": 9.0, "p95": 20.0, "tokenization": 1.0, "quiet": True}
    found: dict[str, Any] = {
        "latency": latency, "parent": {"name": "big", "latency": {"mean": 14.0}}, "speedup": 1.5
    }  # fmt: skip
    said = certificate._describe_latency(found)
    assert said.endswith("1.50x the speed of big by the median rounds; the mean of big is 14.00 ms")
    unknown = certificate._describe_latency({**found, "speedup": None})
    assert unknown == (
        "mean 10.00 ms for a text, 1.00 of them tokenization; median 9.00, p95 20.00; the mean of big is 14.00 ms"
    ), "the ratio may be unknown, the time is not"


def test_equally_large_models_are_compared_with_the_float_one() -> None:
    """An int8 model may be the slower one, as of a narrow model or on a busy machine."""

    def candidate(name: str, parameters: int, is_quantized: bool, ms: float, has_exits: bool = False) -> Any:
        return SimpleNamespace(
            name=name, parameters=parameters, is_quantized=is_quantized, has_exits=has_exits,
            latency=SimpleNamespace(mean=ms),
        )  # fmt: skip

    found = [candidate("half", 5, False, 1.0), candidate("parent", 9, False, 2.0), candidate("int8", 9, True, 3.0)]
    assert found[find_parent(found)].name == "parent"
    assert find_parent([*found, candidate("slow", 9, False, 4.0)]) == 3
    assert find_parent([*found, candidate("early", 9, False, 5.0, has_exits=True)]) == 1


def test_heads_of_exits_make_no_model_the_largest(
    tmp_path: Path, parent: Path, data: Path, known_latencies: dict[str, float], toy_tokenizer_files: dict[str, bytes]
) -> None:
    """Its exits answer all rows, mostly wrong: a loss against itself would be none."""
    known_latencies["early"], plain = 2.0, load_model(parent)
    head = torch.nn.Linear(2 * 32, 3)
    torch.nn.init.zeros_(head.weight)
    early = save_model(
        tmp_path / "early", add_exits(plain.model, [ExitConfig(1, 0.0)], [head]),
        tokenizer_files=toy_tokenizer_files, meta=plain.meta,
    )  # fmt: skip
    how: dict[str, Any] = {"max_drop": 10, "device": "cpu", "runtime": "torch", "quiet": True}
    assert compress.cascade([early, parent], str(data), output=tmp_path / "both", **how)["chosen"] == ["parent"]


def test_the_choice_says_for_which_models_its_confidence_holds() -> None:
    found: dict[str, Any] = {
        "format": "cascade-1",
        "bounds": {"max_drop": 1.0, "confidence": 90.0},
        "chosen_on": {"rows": 872, "split": "validation", "tested_on": 610, "tested": 15, "p_value": 0.03},
    }
    guarantee, rows, method = describe_choice(found).split(". ")
    assert guarantee == (
        "with 90 % confidence, at most 1 point of accuracy is lost on texts like the validation rows, if the models "
        "were not chosen on these rows"
    )
    assert rows == (
        "262 of 872 validation rows proposed thresholds from the safest to the boldest, and the other 610 tested 15 of "
        "them in this order"
    )
    assert method == "The method is learn then test, with an exact paired test: p = 0.030"
    assert "if the model was not chosen" in describe_choice({**found, "format": "exits-1"})
    found["bounds"]["confidence"] = None
    guarantee, *others = describe_choice(found).split(". ")
    assert guarantee.startswith("the loss is checked on the test rows only: the validation rows chose the models")
    assert "confidence" not in guarantee
    assert others == [rows, method]


def test_no_confidence_is_certified_where_the_rows_chose_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate.modelfolder, "fingerprint", str)
    context = dict.fromkeys(("contaminated", "dataset", "dataset_digest", "runtime"), "no")
    measurement = SimpleNamespace(values={"size/disk_mb": 1.0}, context=context)
    model: Any = SimpleNamespace(measurement=measurement, metric="accuracy")
    parent: Any = SimpleNamespace(name="parent", folder="parent")
    alone = CascadeChoice((0,), (), 1.0, (1.0,), 0.5, 0.04)
    monkeypatch.setattr(certificate, "find_overlap", lambda rows, others, exact: np.arange(len(rows)) < 4)
    table: Any = SimpleNamespace(split=lambda name: range(100))
    console: Any = None
    asked = CascadeRequest({}, table, 16, {}, 1.0, console, confidence=95)
    for rows_chose, told in ((False, 95), (True, None)):
        request = dataclasses.replace(asked, rows_chose_models=rows_chose)
        measured = certificate.MeasuredCascade(model, model, [40])
        found = certificate.issue(request, [{}], Selection(alone, alone, 3, 70), parent, measured)
        assert found["bounds"] == {"max_drop": 1.0, "confidence": told}
        assert found["chosen_on"]["p_value"] == 0.04, "the rule is the same"
        assert found["chosen_on"]["shared_rows"] == 4

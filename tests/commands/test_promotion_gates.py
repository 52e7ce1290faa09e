"""The gates of `compress promote`: what a model is held against, who is chosen, what a version is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compress.commands import promote
from compress.commands.promote import (
    CheckedModel,
    Figure,
    Gates,
    _choose_best,
    _find_metric,
    _list_figures,
    _suggest_name,
)
from compress.contracts import Override, RunOptions
from compress.errors import ExitCode, UserError
from compress.modelfolder.meta import DataNote, FolderMeta, MeasurementNote

DROP = "vs_teacher/accuracy_difference"
VALUES = {"quality/accuracy": 0.9, DROP: -0.004, f"{DROP}_low": -0.012, f"{DROP}_high": 0.003, "size/disk_mb": 3.0}
CONTEXT = {"metric": "accuracy", "dataset_digest": "abc", "dataset": "opinions/test"}


def note(values: dict[str, float] | None = None, **context: str) -> MeasurementNote:
    return MeasurementNote(values=VALUES if values is None else values, context={**CONTEXT, **context})


def judged(name: str, *excess: float, accuracy: float = 0.9, **context: str) -> CheckedModel:
    """A model that is over each gate of 10 by a share of it."""
    figures = [Figure("--max-mb", "size", 10 * (1 + share), 10.0, "MB") for share in excess]
    return CheckedModel(name, Path(name), FolderMeta(), note({"quality/accuracy": accuracy}, **context), figures)


def drop(gates: Gates, measured: MeasurementNote | None) -> Figure:
    (found,) = _list_figures("m", Path("m"), gates, measured, fresh=True)
    return found


# --- what a model has -----------------------------------------------------------------------------------------------


def test_a_drop_is_the_difference_turned_round_in_points() -> None:
    found = drop(Gates(drop=1.0), note())
    assert (found.value, found.met) == (pytest.approx(0.4), True)
    assert found.sentence() == "drop of accuracy 0.4 [-0.30, 1.20] within the limit of 1 point"


def test_a_figure_is_rounded_unless_that_would_turn_the_answer_round() -> None:
    for value, said in (
        (0.05491, "size 0.05 within"),
        (-0.001, "size 0 within"),
        (1.004, "size 1.004 over"),
        (12.0, "size 12 over"),
    ):
        assert Figure("--max-mb", "size", value, 1.0, "MB").sentence() == f"{said} the limit of 1 MB"


def test_a_sure_drop_is_the_end_of_the_interval() -> None:
    found = drop(Gates(drop=1.0, sure=True), note())
    assert (found.value, found.met) == (pytest.approx(1.2), False)
    assert found.sentence().startswith("upper bound of the drop of accuracy 1.2")
    assert found.excess == pytest.approx(0.2)


def test_an_estimate_of_simulated_integers_says_so() -> None:
    found = drop(Gates(drop=1.0), note({f"fake_quantized/{key}": value for key, value in VALUES.items()}))
    assert found.sentence().endswith("[-0.30, 1.20], simulated within the limit of 1 point")


def test_a_drop_without_an_interval_is_not_sure() -> None:
    """Earlier versions stored [0, 0] for two models that are right on the same 20 rows."""
    for values in ({DROP: 0.0}, {DROP: 0.0, f"{DROP}_low": 0.0, f"{DROP}_high": 0.0}):
        with pytest.raises(UserError, match="the drop from the teacher has no interval; measure it again: add --data"):
            drop(Gates(drop=1.0, sure=True), note(values))
    assert str(drop(Gates(drop=1.0), note({DROP: 0.0})).value) == "0.0", "never -0"


def test_what_was_not_measured_is_asked_for() -> None:
    for gates, flag in ((Gates(drop=1.0), "--max-drop, m"), (Gates(ms=1.0), "--max-ms, m")):
        with pytest.raises(UserError, match="has not been measured") as unknown:
            _list_figures("m", Path("m"), gates, None, fresh=False)
        assert unknown.value.where == flag


def test_texts_are_gated_by_their_mean_latency() -> None:
    """The median of a cascade is that of its first model."""
    values = {"speed/latency_p50_ms": 2.0, "speed/latency_mean_ms": 4.0}
    (found,) = _list_figures("m", Path("m"), Gates(ms=3.0), note(values, device_kind="cuda"), fresh=False)
    assert (found.value, found.met) == (4.0, False)
    assert found.sentence().startswith("mean latency 4 ms (")


def test_a_latency_of_another_machine_is_not_this_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promote, "describe", lambda _: {"device": "this one"})
    there = note({"speed/latency_p50_ms": 2.0}, device="another", device_kind="cpu")
    with pytest.raises(UserError, match="the latency of m was measured on another: this machine has this one"):
        _list_figures("m", Path("m"), Gates(ms=3.0), there, fresh=False)
    gpu = note({"speed/latency_p50_ms": 2.0}, device="a GPU", device_kind="cuda")
    assert _list_figures("m", Path("m"), Gates(ms=3.0), gpu, fresh=False)[0].met


@pytest.mark.parametrize(
    ("values", "context", "metric"),
    [
        (VALUES, {"metric": "f1"}, "f1"),
        (VALUES, {}, "accuracy"),
        ({DROP: 0.0, "vs_teacher/f1_difference": 0.0}, {}, ""),
        ({"quality/accuracy": 0.9}, {}, ""),
    ],
)
def test_the_metric_of_old_figures_is_that_of_their_one_difference(
    values: dict[str, float], context: dict[str, str], metric: str
) -> None:
    assert _find_metric(MeasurementNote(values=values, context=context)) == metric
    assert _find_metric(None) == ""


# --- who is chosen --------------------------------------------------------------------------------------------------


def test_the_best_of_those_that_meet_the_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    megabytes = {"good": 5.0, "equal": 4.0, "over": 1.0}
    inspect: Any = lambda folder: type("Info", (), {"disk_mb": megabytes[folder.name]})  # noqa: E731
    monkeypatch.setattr(promote, "inspect", inspect)
    good, equal = judged("good", -0.1, accuracy=0.91), judged("equal", -0.1, accuracy=0.91)
    over = judged("over", 0.1, accuracy=0.99)
    assert _choose_best([judged("worse", -0.5, accuracy=0.9), over], Gates()).name == "worse"
    assert _choose_best([good, equal, over], Gates()).name == "equal", "of equals the smaller one"


def test_models_measured_on_different_data_are_not_ranked() -> None:
    for other in (judged("b", -0.1, dataset_digest="other"), judged("b", -0.1, metric="f1")):
        with pytest.raises(UserError, match="2 models pass the gates but were not measured on the same data"):
            _choose_best([judged("a", -0.1), other], Gates())


def test_the_nearest_is_named_where_none_passes() -> None:
    with pytest.raises(UserError) as refused:
        _choose_best([judged("far", 0.5, -0.5), judged("near", 0.2, 0.1)], Gates())
    assert refused.value.code == ExitCode.REFUSED
    assert refused.value.line().startswith("none of 2 models passes the gates: the closest is near: size 12 over")
    with pytest.raises(UserError, match=r"^the model does not pass the gates: far"):
        _choose_best([judged("far", 0.5)], Gates())


# --- what a version is called and says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "data", "name"),
    [
        ("runs/x/student", "embedded:opinions", "opinions"),
        ("runs/x/student", "data/reviews.csv", "reviews"),
        ("runs/x/student", None, "x"),
        ("runs/x/model", None, "x"),
        ("models/small", None, "small"),
    ],
)
def test_a_model_is_registered_as_what_it_is_for(tmp_path: Path, folder: str, data: str | None, name: str) -> None:
    meta = FolderMeta(data=None if data is None else DataNote(name=data, fingerprint="abc"))
    assert _suggest_name(CheckedModel("m", tmp_path / folder, meta, None, ())) == name


def test_a_drop_is_not_measured_without_a_teacher() -> None:
    options = RunOptions(overrides=(Override("data.source", "reviews", "--data"),))
    with pytest.raises(UserError, match=r"--max-drop: --data measures the models again.*add --against TEACHER"):
        promote.promote(["nowhere"], "champion", None, Gates(drop=1.0), options)

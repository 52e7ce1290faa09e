"""What cannot be asked of a fit, and what is told."""

from __future__ import annotations

import click
import pytest

from compress.cli.fit import command
from compress.errors import ExitCode, UserError
from compress.fit.request.bounds import Bounds, make_budget_error
from compress.fit.request.options import FitOptions


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (Bounds(), "compress fit: at least one bound is required; add --max-mb, --max-ms or --max-drop"),
        (Bounds(max_mb=0), "--max-mb: 0 is not possible; give a number above 0"),
        (Bounds(max_ms=-1), "--max-ms: -1 is not possible; give a number above 0"),
        (Bounds(max_mb=float("nan")), "--max-mb: nan is not possible; give a number above 0"),
        (Bounds(max_drop=-0.5), "--max-drop: -0.5 points is not possible; give 0 to 100, such as 0.5"),
        (
            Bounds(max_mb=5, asked="smallest"),
            "--objective smallest: the smallest model needs a bound on quality; add --max-drop POINTS",
        ),
        (
            Bounds(max_drop=1, asked="quality"),
            "--objective quality: without a size or latency bound, the best model is the parent; add --max-mb or "
            "--max-ms, or remove --objective to get the smallest model within --max-drop",
        ),
    ],
)
def test_what_cannot_be_asked(bounds: Bounds, message: str) -> None:
    with pytest.raises(UserError) as error:
        bounds.check()
    assert error.value.line() == message
    assert error.value.code == ExitCode.INPUT


def test_what_is_best_follows_from_the_bounds() -> None:
    assert Bounds(max_mb=1).objective == "quality"
    assert Bounds(max_drop=1).objective == "smallest"
    assert Bounds(max_drop=1, max_mb=1).objective == "quality"
    assert Bounds(max_drop=1, asked="fastest").objective == "fastest"
    assert (
        Bounds(20, 5, 0.5).sentence()
        == "the best model with at most 20 MB and at most 5 ms and at most 0.5 points lost"
    )


def test_no_model_is_faster_than_its_tokenizer() -> None:
    with pytest.raises(UserError) as error:
        Bounds(max_ms=0.1).check_tokenization(0.1234)
    assert error.value.line() == (
        "--max-ms: 0.1 ms is less than the tokenizer alone takes for a text, 0.123 ms on average; give more than "
        "0.123, or --length N to time the model without tokenization"
    )
    assert error.value.code == ExitCode.INPUT
    Bounds(max_ms=0.2).check_tokenization(0.1234)
    Bounds(max_mb=1).check_tokenization(0.1234)


def test_too_few_rows_for_the_interval_that_is_asked() -> None:
    with pytest.raises(UserError) as error:
        Bounds(max_drop=0.5).check_rows(100, "f1_macro", uncertified=False)
    assert error.value.line() == (
        "--max-drop: 100 test rows are too few to show a loss of macro F1 below 0.5 points: even without any loss, the "
        "95 % interval would reach 3.70 points; use 765 test rows or a larger bound, or accept an uncertified model: "
        "--uncertified"
    )
    Bounds(max_drop=0.5).check_rows(765, "accuracy", uncertified=False)
    Bounds(max_drop=0.5).check_rows(100, "accuracy", uncertified=True)
    Bounds(max_mb=5).check_rows(10, "accuracy", uncertified=False)


def test_what_is_over_and_by_how_much() -> None:
    bounds = Bounds(10, 4, 0.5)
    assert bounds.over(10, 4, 0.5) == []
    assert bounds.over(12, 5, 1.5) == ["12.00 MB, bound 10", "5.00 ms, bound 4", "1.50 points lost, bound 0.5"]
    assert bounds.excess(12, 5, 1.5) == pytest.approx(0.2 + 0.25 + 1.0)
    assert bounds.excess(9, 3, None) == 0


def test_below_the_least() -> None:
    error = make_budget_error("--max-mb", 0.1, 0.8, "MB", "on the target")
    assert error.code == ExitCode.REFUSED
    assert error.line() == (
        "--max-mb: 0.1 MB is below the smallest possible value: one layer with one head, one neuron and the smallest "
        "vocabulary takes 0.8 MB on the target; give more than 0.8 MB"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bounds": Bounds(max_mb=5)}, "--cascade: needs a bound on the loss; add --max-drop POINTS"),
        ({"bounds": Bounds(max_ms=3, asked="fastest")}, "--cascade: needs a bound on the loss; add --max-drop POINTS"),
        ({"bounds": Bounds(max_drop=-1, asked="fastest")}, "--max-drop: -1 points is not possible"),
        ({"bounds": Bounds(max_drop=1, max_ms=3)}, "--max-ms: cannot be combined with --cascade"),
        ({"length": 128}, "--length: cannot be combined with --cascade"),
        ({"batch": 8}, "--batch: cannot be combined with --cascade"),
        ({"plan_only": True}, "--plan-only: cannot be combined with --cascade, which joins models that"),
    ],
)
def test_what_a_cascade_of_a_fit_needs(options: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        FitOptions(**{"model": "m", "bounds": Bounds(max_drop=1, asked="fastest"), "cascade": True, **options}).check()
    assert error.value.line().startswith(message)


def test_a_fit_without_a_cascade_is_resumed_by_later_versions() -> None:
    plain = FitOptions(model="m", bounds=Bounds(max_drop=1))
    assert "cascade" not in plain.digest()
    assert "cascade" in FitOptions(model="m", bounds=Bounds(max_drop=1), cascade=True).digest()


def test_the_help_states_the_default_number_of_steps() -> None:
    """As text: the options import torch, which the help does not need."""
    (option,) = [one for one in command.params if one.name == "steps"]
    assert isinstance(option, click.Option)
    assert f"(default: {FitOptions.steps})" in (option.help or "")

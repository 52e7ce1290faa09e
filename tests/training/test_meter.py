"""What steps report: means for the log, and when bad steps end the run."""

from __future__ import annotations

import dataclasses
import logging
import math
from types import SimpleNamespace

import pytest
import torch

from compress.errors import ExitCode, UserError
from compress.training.meter import LOSS, NORM, Meter, StepReport
from compress.training.state import Window


def meter(limit: int = 2, peak: float | None = None) -> Meter:
    state = SimpleNamespace(window=Window(), tokens=0, seconds=0.0, joules=0.0, bad_steps=0, bad_in_a_row=0, step=0)
    return Meter(state, limit, peak)  # type: ignore[arg-type]


def report(step: int, loss: float, norm: float = 1.0, rows: int = 2, **more: float) -> StepReport:
    figures = {LOSS: torch.tensor(loss), NORM: torch.tensor(norm), **{k: torch.tensor(v) for k, v in more.items()}}
    return StepReport(step, figures, torch.arange(rows), tokens=10)


def test_a_line_has_the_means_since_the_last_one() -> None:
    one = meter()
    for step, loss in ((1, 2.0), (2, 4.0)):
        one.add(report(step, loss, hard_labels=loss / 2))
        one.spend(0.5)
    one.drain(None)
    assert one.last_loss == 4.0
    assert one.line(1e-3) == {
        "train/loss": 3.0, "train/grad_norm": 1.0, "train/hard_labels": 1.5, "train/learning_rate": 1e-3,
        "train/tokens_per_second": 20.0,
    }  # fmt: skip
    assert one.line(1e-3) == {"train/learning_rate": 1e-3}, "a new window"
    assert one.tokens_per_second == 20.0, "of the whole run"


def test_a_line_has_what_the_steps_took_of_the_device() -> None:
    one = meter(peak=1000.0)
    for step in (1, 2):
        one.add(dataclasses.replace(report(step, 1.0), operations=150, waits=3 if step == 2 else None))
        one.spend(0.5)
        one.add_energy(8.0)
    one.drain(None)
    line = one.line(0.1)
    assert line["train/mfu_pct"] == 30.0, "300 operations in a second, of 1000"
    assert line["train/joules_per_1000_rows"] == 4000.0, "16 J for 4 rows"
    assert line["train/waits_per_step"] == 3.0
    one.add(report(3, 1.0))
    one.spend(0.5)
    one.add_energy(None)
    one.drain(None)
    told = {"train/mfu_pct", "train/joules_per_1000_rows", "train/waits_per_step"}
    assert not told & one.line(0.1).keys(), "unknown operations, unknown energy, and waits are counted once"
    assert one.state.joules is None, "of the whole run"
    one.add(report(4, 1.0))
    one.add_energy(1.0)
    assert one.line(0.1)["train/joules_per_1000_rows"] == 500.0, "known again"


def test_a_term_that_some_steps_lack_is_the_mean_of_those_that_have_it() -> None:
    one = meter()
    one.add(report(1, 1.0, masked_lm=3.0))
    one.add(report(2, 1.0))
    one.drain(None)
    assert one.line(0.1)["train/masked_lm"] == 3.0


@pytest.mark.parametrize(
    ("loss", "norm", "what"), [(math.nan, 1.0, "loss is nan"), (1.0, math.inf, "grad_norm is inf")]
)
def test_a_bad_step_is_skipped_and_named(loss: float, norm: float, what: str, caplog: pytest.LogCaptureFixture) -> None:
    one = meter()
    one.add(report(7, loss, norm, rows=14))
    with caplog.at_level(logging.WARNING, "compress.training"):
        one.drain(None)
    rows = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more"
    assert caplog.messages == [f"step 7 skipped: {what}; rows {rows}"]
    assert one.line(0.1) == {"train/learning_rate": 0.1, "train/skipped_steps": 1.0}


def test_too_many_in_a_row_end_the_run_and_a_good_one_starts_the_count_anew() -> None:
    one = meter(limit=2)
    for step, loss in enumerate((math.nan, math.nan, 1.0, math.nan, math.nan), 1):
        one.add(report(step, loss))
    one.drain(None)
    one.add(report(6, math.nan))
    with pytest.raises(UserError) as caught:
        one.drain("runs/x/checkpoints/step-00000003")
    assert str(caught.value) == (
        "step 6: training produced non-finite values: loss is nan, 3 such steps in a row; rows 0, 1; lower the "
        "learning rate or check these rows; last good checkpoint: runs/x/checkpoints/step-00000003"
    )
    assert caught.value.code == ExitCode.DATA


def test_a_run_without_a_good_step_is_an_error() -> None:
    one = meter(limit=9)
    one.require_good_step()
    one.add(report(1, math.nan))
    one.drain(None)
    one.state.step = 1
    with pytest.raises(UserError, match="step 1: training produced non-finite values: in its only step"):
        one.require_good_step()
    one.add(report(2, 1.0))
    one.drain(None)
    one.state.step = 2
    one.require_good_step()

"""The overfitting check: its examples, when it stops, what it calls healthy, and what it reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from compress import registry
from compress.console import Console
from compress.contracts import Needs, RunOptions, TrainingPlan
from compress.data.reading.corpus import Corpus
from compress.data.tables.table import Rows, Table
from compress.errors import ExitCode, UserError
from compress.experiments import overfit
from compress.experiments.overfit import (
    LEARNED,
    LEAST,
    STEPS,
    Outcome,
    _Enough,
    _few,
    _floors,
    _short,
    _tell,
    _Watch,
    check_recipe,
)
from compress.stages.distill.checks._check import Finding
from compress.stages.distill.diagnosis import PACKAGE, Diagnosis


def rows(texts: list[str]) -> Rows:
    column = pa.chunked_array([pa.array(texts, pa.large_string())])
    return Rows({"text": column}, np.arange(len(texts)), np.arange(1, len(texts) + 1))


# --- the examples ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "taken"), [(1000, 64), (64, 64), (5, 5)])
def test_examples_are_spread_over_the_training_rows(count: int, taken: int) -> None:
    train = rows([str(i) for i in range(count)])
    splits = {"train": train, "validation": train.take(np.arange(2))}
    table = Table(splits, "classification", ("a", "b"), {"text": "text"}, "abc", "x")
    few = _few(table)
    numbers = few.split("train").numbers
    assert len(numbers) == taken
    assert (numbers[0], numbers[-1]) == (1, count), "from the first to the last"
    assert few.split("validation") is few.split("test") is few.split("train"), "it is asked about what it learned"
    assert few.fingerprint != table.fingerprint, "no cache of the whole data is used"


def test_documents_are_taken_until_they_fill_the_blocks() -> None:
    texts = ["é" * 1000] * 20  # 2,000 bytes each
    corpus = Corpus({"train": rows(texts), "validation": rows(["x"])}, "x", "abc")
    short = _short(corpus, 32)  # 64 blocks of 32 pieces of four bytes: 8,192 bytes
    assert len(short.splits["train"]) == 5
    assert short.splits["validation"] is short.splits["train"]
    assert len(_short(corpus, 4096).splits["train"]) == 20, "all there are"


@pytest.mark.parametrize(("count", "epochs", "steps"), [(1000, 3, 94), (960, 3, 90), (1000.0, 0.5, 16)])
def test_steps_of_the_whole_run(count: float, epochs: float, steps: int) -> None:
    assert overfit.count_steps(count, TrainingPlan(epochs=epochs, batch_rows=32)) == steps


def test_the_most_steps_of_a_run_of_automatic_length() -> None:
    assert overfit.count_steps(32 * 150, TrainingPlan(batch_rows=32)) == 1500


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        (RunOptions(output=Path("x")), "--output"), (RunOptions(resume=True), "--resume"),
        (RunOptions(dry_run=True), "--dry-run"),
    ],
)  # fmt: skip
def test_flags_that_say_what_is_saved_do_not_apply(options: RunOptions, flag: str) -> None:
    overfit._refuse(RunOptions())
    with pytest.raises(UserError) as refused:
        overfit._refuse(options)
    assert refused.value.line() == f"{flag}: --check saves no model; remove it, or remove --check"


# --- floors ---------------------------------------------------------------------------------------------------------


class Reading(nn.Module):
    """An objective that is worth the mean of what it is given, over so many rows."""

    def __init__(self, needs: Needs) -> None:
        super().__init__()
        self.student_needs = needs

    def count(self, batch: Any) -> int:
        return len(batch)

    def forward(self, student: torch.Tensor, teacher: torch.Tensor, batch: Any) -> torch.Tensor:
        assert student is teacher, "the floor is that of a student that is the teacher"
        return student.mean()


def test_a_floor_is_the_mean_over_rows_of_objectives_that_read_the_task_alone() -> None:
    needs = {"labels": Needs(logits=True), "hidden": Needs(hidden_states=True), "both": Needs(logits=True, pooled=True)}
    module: Any = SimpleNamespace(
        teacher=lambda batch, _: torch.tensor(batch), objectives={name: Reading(n) for name, n in needs.items()}
    )
    batches: Any = [[1.0, 1.0, 1.0], [5.0]]
    assert _floors(module, batches) == {"labels": pytest.approx(2.0)}, "batches count by their rows"
    assert _floors(SimpleNamespace(teacher=None), batches) == {}  # type: ignore[arg-type]


# --- watching -------------------------------------------------------------------------------------------------------


def watch(
    first: float = 2.0, last: float = 0.1, score: float | None = 1.0, *, floor: float = 0.0, answers: bool = True,
    step: int = 100, **readings: float,
) -> _Watch:  # fmt: skip
    """A check after `step` steps whose loss went from `first` to `last`."""
    diagnosis = Diagnosis.__new__(Diagnosis)
    module = SimpleNamespace(weights={"labels": 0.5, "hidden": 1.0, "off": 0.0})
    probe = SimpleNamespace(score="agreement")
    plan = TrainingPlan(steps=9, learning_rate=1e-4)
    diagnosis.start = SimpleNamespace(module=module, probe=probe, answers=answers, plan=plan)  # type: ignore
    diagnosis.findings = []
    one = _Watch(SimpleNamespace(diagnosis=diagnosis), 10.0)  # type: ignore[arg-type]
    one.first = {"probe_loss": first, "step": 0.0, "probe/labels": 1.0, "probe/hidden": 1.0, "probe/off": 1.0}
    one.last = {"probe_loss": last, "step": float(step), "probe/labels": 0.1, "probe/hidden": 0.1, "probe/off": 1.0}
    one.last |= readings | ({} if score is None else {"agreement": score})
    one.floors = {"labels": floor}
    return one


def outcome(one: _Watch, level: str = "task_specific", **more: Any) -> Outcome:
    spec = SimpleNamespace(level=level, training=TrainingPlan(steps=9, batch_rows=32, learning_rate=1e-4))
    return one.outcome("0-distill", spec, more.get("total"), more.get("factor", 1.0))


def test_what_is_left_of_the_loss_is_counted_from_its_floor() -> None:
    assert watch(2.0, 0.5)._left() == pytest.approx(0.25)
    assert watch(2.0, 1.1, floor=2.0)._left() == pytest.approx(0.1), "the floor counts by the objective's weight"
    assert watch(2.0, 0.5, floor=2.0)._left() == 0.0, "below the floor nothing is left"
    assert watch(1.0, 1.0, floor=2.0)._left() == 0.0, "a student that is the teacher has nothing to learn"


def test_a_student_that_learned_is_healthy() -> None:
    one = watch()
    one.durations = [0.1, 0.3, 0.2]
    found = outcome(one, total=1000, factor=2.0)
    assert found.reasons == []
    assert found.plan == "100 steps of 32 rows, learning rate 0.0001"
    assert found.per_step == pytest.approx(0.4), "the median, of a real step's rows"
    told = found.as_json()
    assert (told["healthy"], told["seconds_of_the_run"]) == (True, pytest.approx(400.0))
    assert outcome(one).as_json()["seconds_of_the_run"] is None, "how long is unknown where the steps are"
    assert math.isnan(outcome(watch()).per_step)


def test_each_reason_why_it_is_not_healthy() -> None:
    assert outcome(watch(2.0, 0.3)).reasons == [
        "15 % of the initial loss above its floor remains after 100 steps, at most 10 % should be"
    ]
    assert outcome(watch(score=LEARNED - 0.01)).reasons == [
        "agreement with the teacher is 0.959 on rows that it was trained on repeatedly"
    ]
    still: Any = {"probe/hidden": 1.0}
    assert outcome(watch(**still)).reasons == ["hidden did not fall by 2 %: 1 → 1 in 100 steps"], (
        "an objective of weight 0 need not fall"
    )


def test_hidden_states_and_general_text_are_held_to_less() -> None:
    """They fall for days: a fifth of the loss is enough, and agreement is not asked."""
    assert outcome(watch(2.0, 1.5, None, answers=False)).reasons == []
    assert outcome(watch(2.0, 1.5, 0.1), level="general").reasons == []
    assert "at most 80 % should be" in outcome(watch(2.0, 1.7, answers=False)).reasons[0]


def find_by(kind: str) -> Finding:
    """What a check would find."""
    return registry.load(PACKAGE, kind)().make_finding(f"{kind} found", "do this")


def test_findings_are_reasons_but_for_those_that_are_shown_elsewhere() -> None:
    one = watch()
    for check in ("random_student", "standing_objectives", "logit_scales"):
        one.diagnosis.findings.append(find_by(check))
    assert outcome(one).reasons == ["logit_scales found"]
    assert outcome(one, level="general").reasons == [], "a few texts are learned beyond what the teacher knows"


@pytest.mark.parametrize(
    ("ours", "theirs", "what"),
    [
        (watch, ["teacher_quality"], "the teacher is not usable: 0-distill: teacher_quality found"),
        (watch, ["one_answer"], "the student does not learn: 0-distill: one_answer found"),
        (
            watch,
            ["label_order", "one_answer"],
            "the teacher is not usable: 0-distill: label_order found; 0-",
        ),
        (
            lambda: watch(2.0, 0.3),
            ["teacher_quality"],
            "the teacher is not usable: 0-distill: teacher_quality found; ",
        ),
        (lambda: watch(2.0, 0.3), [], "the student does not learn: 0-distill: 15 % of the initial loss"),
    ],
)
def test_the_teacher_is_named_where_it_is_at_fault(
    ours: Any, theirs: list[str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ours()
    one.diagnosis.findings += [find_by(check) for check in theirs]
    monkeypatch.setattr(overfit, "Run", lambda *_: None)
    monkeypatch.setattr(overfit, "_Rehearsal", lambda _: SimpleNamespace(rehearse=lambda: [outcome(one)]))
    loaded: Any = SimpleNamespace(recipe=None)
    with pytest.raises(UserError) as refused:
        check_recipe(loaded, RunOptions(), Console(quiet=True), verb=None, inputs={})
    assert refused.value.line().startswith(f"--check: {what}")
    assert refused.value.code == ExitCode.REFUSED


@pytest.mark.parametrize(
    ("step", "late", "last", "score", "ends"),
    [
        (10, False, 0.1, 1.0, True),  # learned
        (10, False, 0.1, 0.5, False),  # the loss is low, the answers are not learned
        (10, False, 1.9, 1.0, False),  # the answers are right, the loss is not low
        (LEAST - 1, True, 1.9, 0.5, False),  # too few steps say nothing, however long they took
        (LEAST, True, 1.9, 0.5, True),
        (STEPS, False, 1.9, 0.5, True),
    ],
)
def test_when_training_ends(
    monkeypatch: pytest.MonkeyPatch, step: int, late: bool, last: float, score: float, ends: bool
) -> None:
    one = watch()
    one.ends = 100.0
    monkeypatch.setattr(overfit.time, "monotonic", lambda: 101.0 if late else 99.0)
    reading: Mapping[str, float] = {"probe_loss": last, "agreement": score}
    monkeypatch.setattr(one.diagnosis, "observe", lambda *_: reading)
    history = [{"step": float(step)}]
    if ends:
        with pytest.raises(_Enough):
            one._look(nn.Identity(), history)
    else:
        assert one._look(nn.Identity(), history) == reading


def test_a_look_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    one, now = watch(), iter([1.0, 1.5, 9.0, 9.25])
    monkeypatch.setattr(overfit.time, "monotonic", lambda: next(now))
    one.timed()
    one.timed()
    one.since = None  # as `_look` leaves it
    one.timed()
    one.timed()
    assert one.durations == [0.5, 0.25]


# --- what is printed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "shown"), [(42.4, "42 s"), (60.0, "1.0 min"), (5400.0, "1.5 h")])
def test_spans(seconds: float, shown: str) -> None:
    assert overfit._span(seconds) == shown


def test_the_table_shows_the_probe_first_and_the_floor() -> None:
    one, tables, lines = watch(floor=0.25), [], []
    one.first = {"kl": 1.0, "accuracy": 0.5, **one.first}
    one.last |= {"kl": 0.5, "agreement": 0.99}
    one.durations = [0.5]
    one.diagnosis.findings.append(find_by("random_student"))
    console: Any = SimpleNamespace(table=lambda _, columns, rows: tables.append(rows), result=lines.append)
    _tell(outcome(one, total=7200), console)
    assert tables == [
        [
            ("loss", 2.0, 0.1, ""), ("  labels", 1.0, 0.1, 0.25), ("  hidden", 1.0, 0.1, ""), ("  off", 1.0, 1.0, ""),
            ("KL to the teacher", 1.0, 0.5, ""),
        ]
    ]  # fmt: skip
    assert lines == [
        "finding  random_student found; do this",
        "time     0.5 s a step; 7,200 steps of the whole stage take about 1.0 h, validation and control not counted",
    ]

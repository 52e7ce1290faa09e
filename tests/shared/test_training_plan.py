"""How long and how fast a stage trains where the recipe does not say, and the sentence about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compress.contracts import TrainingPlan
from compress.stages.shared import training_plan as module
from compress.stages.shared.training_plan import describe_plan, describe_task_plan, settle_plan
from compress.training.length import fixed_length
from compress.training.rate import choose_rate


def settle(plan: TrainingPlan, steps: int = 100, **how: Any) -> tuple[TrainingPlan, list[str]]:
    said: list[str] = []
    context: Any = SimpleNamespace(say=said.append)
    source: Any = SimpleNamespace(steps=lambda epoch: steps)
    return settle_plan(plan, source, 384, context, **how), said


def test_what_the_recipe_says_stays() -> None:
    plan = TrainingPlan(steps=10, learning_rate=0.01)
    assert settle(plan, open_ended=False) == (plan, [])


def test_the_rate_follows_from_the_hidden_size() -> None:
    found, said = settle(TrainingPlan(steps=10))
    assert found.learning_rate == choose_rate(384)
    assert said == [f"learning rate {choose_rate(384):g}, by the hidden size 384"]
    found, said = settle(TrainingPlan(steps=10), factor=10.0)
    assert found.learning_rate == choose_rate(384, 10.0)
    assert said[0].endswith(", times 10 for the parameters trained")
    assert settle(TrainingPlan(steps=10), factor=4.0, why="for a reason")[1][0].endswith(", times 4 for a reason")


def test_a_length_is_fixed_only_where_nothing_can_end_the_training() -> None:
    plan = TrainingPlan(learning_rate=0.01)
    assert settle(plan) == (plan, [])
    found, said = settle(plan, open_ended=False)
    steps = fixed_length(plan, 100)
    assert (found.min_steps, found.max_steps) == (steps, steps)
    assert said == [f"training for {steps:,} steps, by the size of the data"]


@pytest.mark.parametrize(
    ("plan", "how", "text"),
    [
        ({"steps": 10, "learning_rate": 0.01}, {}, "10 steps, 32 rows a step, learning rate 0.01"),
        ({"steps": 10}, {}, "10 steps, 32 rows a step, learning rate by the hidden size of the encoder"),
        ({"steps": 10}, {"hidden": 384}, f"10 steps, 32 rows a step, learning rate {choose_rate(384):g}"),
        ({"learning_rate": 0.01}, {}, "until validation stops improving, 32 rows a step, learning rate 0.01"),
        (
            {"learning_rate": 0.01}, {"metric": "validation accuracy"},
            "until validation accuracy stops rising, 32 rows a step, learning rate 0.01",
        ),
        ({"steps": 9, "learning_rate": 0.01, "minutes": 5}, {}, "9 steps, at most 5 min"),
    ],
)  # fmt: skip
def test_the_sentence(plan: dict[str, Any], how: dict[str, Any], text: str) -> None:
    assert describe_plan(TrainingPlan(**plan), **how).startswith(text)


def test_rows_that_do_not_fill_a_step_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module, "choose_length", lambda plan, steps: asked.append(steps))
    for rows in (1, 32, 33, 0):
        describe_plan(TrainingPlan(learning_rate=0.01), rows=rows)
    assert asked == [1, 1, 2, 1]


def test_a_task_s_plan_names_its_metric_once_the_data_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TrainingPlan(learning_rate=0.01)
    monkeypatch.setattr(module, "task_choice", lambda table: ("entity_f1", "max"))
    recipe = SimpleNamespace(data=SimpleNamespace(max_length=1024))
    closed: Any = SimpleNamespace(opened=lambda: None, recipe=recipe)
    table = SimpleNamespace(task="classification", settings={}, split=lambda name: range(64))
    opened: Any = SimpleNamespace(opened=lambda: table, recipe=recipe)
    assert describe_task_plan(plan, opened, None).endswith(", texts of up to 1,024 tokens")
    assert describe_task_plan(plan, closed, None).startswith("until validation stops improving,")
    assert describe_task_plan(plan, opened, None).startswith("until validation entity F1 stops rising (")
    assert describe_task_plan(plan, opened, None, metric="agreement").startswith("until agreement stops rising (")
    long = describe_task_plan(plan, opened, None, more_rows=100_000)
    assert "(500 to 10,000 steps)" in long, "rows that only a teacher labels are trained on too"

"""What a round of a gradual schedule removes: its part of the way, and nothing where an earlier one went that far."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from compress.contracts import WidthScores
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.stages.prune_width import stage as stages
from compress.stages.prune_width.costs import Counts
from compress.stages.prune_width.spec import Spec
from compress.stages.prune_width.stage import Stage
from compress.stages.prune_width.subject import Subject

WHOLE = EncoderConfig.uniform(vocabulary=40, hidden=24, layers=2, heads=12, feed_forward=24, max_positions=32)
HEADS = {"task": HeadConfig("classification", labels=2)}


def of(heads: int, neurons: int = 24) -> EncoderConfig:
    return dataclasses.replace(WHOLE, layers=(LayerShape(heads, 2, neurons),) * 2)


def opened(config: EncoderConfig, said: list[str] | None = None, **asked: Any) -> tuple[Stage, Subject, WidthScores]:
    spec = Spec.model_validate({"kind": "prune_width", "importance": {"kind": "random"}, **asked})
    plan = SimpleNamespace(tokens=16)
    context: Any = SimpleNamespace(
        say=[].append if said is None else said.append, device="cpu",
        recipe=SimpleNamespace(evaluation=SimpleNamespace(latency=plan)),
    )  # fmt: skip
    loaded: Any = SimpleNamespace(config=config, heads=HEADS, model=Model(config, HEADS).eval())
    importance: Any = SimpleNamespace(in_loss=False, rearranges=False, refits=False)
    study: Any = SimpleNamespace(trained=None)
    subject = Subject(spec, context, Path("parent"), loaded, WHOLE, study, importance, [])
    shapes = config.layers
    scores = WidthScores([torch.arange(s.heads) for s in shapes], [torch.arange(s.feed_forward) for s in shapes])
    subject.scores = scores
    return Stage(spec, context), subject, scores


def test_every_round_of_a_schedule_can_be_made() -> None:
    """From 12 heads to 6 in five rounds, along the curve of --prune-rounds: the last two have nothing left to do."""
    config, found = WHOLE, []
    for number in range(1, 6):
        stage, subject, scores = opened(config, keep_heads=6, schedule=1 - (1 - number / 5) ** 3)
        counts = stage._counts(subject, scores)
        config = of(counts.heads[0])
        found.append(counts.heads)
    assert found == [(9, 9), (7, 7), (6, 6), (6, 6), (6, 6)]


@pytest.mark.parametrize("target", [{"target_params": 0.9}, {"target_flops": 0.9}, {"ratio": 0.1}])
def test_a_budget_that_an_earlier_round_has_met(target: dict[str, Any]) -> None:
    stage, subject, scores = opened(of(6, 12), **target)
    assert stage._counts(subject, scores) == Counts.of(subject.config)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"keep_heads": 11, "schedule": 0.1}, "nothing would be removed"),
        ({"target_params": 10_000_000}, "is not below the model's cost"),
    ],
)
def test_a_first_cut_that_removes_nothing_is_an_error(target: dict[str, Any], message: str) -> None:
    stage, subject, scores = opened(WHOLE, **target)
    with pytest.raises(UserError, match=message):
        stage._counts(subject, scores)


def test_the_model_of_such_a_round_is_the_one_before() -> None:
    said: list[str] = []
    stage, subject, scores = opened(of(6), said, keep_heads=6)
    subject.importance = lambda _: scores  # type: ignore[assignment]
    subject.importance.in_loss = False  # type: ignore[attr-defined]
    stage.context.workshop = SimpleNamespace(stop=lambda: None)  # type: ignore[misc]
    counts, made, kept = stage._cut(subject)
    assert made is subject.loaded.model
    assert counts == Counts.of(subject.config)
    assert kept is not None
    assert kept.heads == (tuple(range(6)),) * 2
    assert said == ["nothing is removed: an earlier round has reached the target of this one"]


# --- a latency ----------------------------------------------------------------------------------------------------


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """A machine on which a model takes `ms(heads, neurons)`; returns the limits that were tried."""

    def install(predicted: Callable[[Counts], float], measured: Callable[[EncoderConfig], float]) -> list[float]:
        limits: list[float] = []
        whole = Counts((12, 12), (24, 24))
        costs = SimpleNamespace(
            maximum=predicted(whole), minimum=predicted(Counts((1, 1), (1, 1))), of=predicted, unit="ms"
        )
        table = SimpleNamespace(busy=False, costs=lambda _: costs)
        monkeypatch.setattr(stages.latency, "table", lambda *_: (table, "table.json"))

        def plan(spec: Any, config: Any, scores: Any, costs: Any, budget: float, *_: Any) -> Counts:
            limits.append(budget)
            heads = max(n for n in range(1, 13) if predicted(Counts((n, n), (24, 24))) <= budget)
            return Counts((heads, heads), (24, 24))

        monkeypatch.setattr(stages.targets, "budget_counts", plan)
        monkeypatch.setattr(
            stages, "measure_models", lambda models, *_: [SimpleNamespace(p50=measured(m.config)) for m in models]
        )
        return limits

    return install


def heads_of(counts: Counts) -> float:
    return float(sum(counts.heads))


def test_a_plan_that_proves_too_slow_is_cut_further(timed: Any) -> None:
    limits = timed(heads_of, lambda config: 1.5 * sum(s.heads for s in config.layers))
    stage, subject, scores = opened(WHOLE, target_latency=12.0)
    counts, made, _ = stage._within(12.0, subject, scores)
    assert limits[0] == 12.0
    assert 1.5 * sum(counts.heads) <= 12.0
    assert [trial.met for trial in subject.tried] == [False] * (len(limits) - 1) + [True]
    assert made.config.layers[0].heads == counts.heads[0]


def test_a_latency_out_of_reach_names_the_fastest(timed: Any) -> None:
    timed(heads_of, lambda config: 100.0 + sum(s.heads for s in config.layers))
    stage, subject, scores = opened(WHOLE, target_latency=12.0)
    with pytest.raises(UserError, match=r"the fastest measured model takes 102\.00 ms, the parent 124\.00 ms"):
        stage._within(12.0, subject, scores)


@pytest.mark.parametrize(("scale", "target"), [(1.0, 12.0), (0.01, 0.12)])
def test_a_round_goes_its_part_of_the_way_of_milliseconds_below_one_too(
    timed: Any, scale: float, target: float
) -> None:
    limits = timed(lambda c: scale * heads_of(c), lambda config: scale * sum(s.heads for s in config.layers))
    stage, subject, scores = opened(WHOLE, target_latency=target, schedule=0.5)
    stage._within(target, subject, scores)
    assert limits == [pytest.approx(18 * scale)]


def test_a_model_that_is_fast_enough(timed: Any) -> None:
    timed(heads_of, lambda config: float(sum(s.heads for s in config.layers)))
    stage, subject, scores = opened(WHOLE, target_latency=100.0)
    with pytest.raises(UserError, match="100 ms is not below the model's latency: the model takes 24"):
        stage._within(100.0, subject, scores)
    stage, subject, scores = opened(of(6), target_latency=100.0)
    assert stage._within(100.0, subject, scores)[1] is subject.loaded.model


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"ratio": 0.3}, "keep 0.7 of heads and neurons; uniform over layers"),
        ({"target_params": 0.9}, "target_params 0.9; uniform over layers"),
    ],
)
def test_the_plan_names_the_share_as_the_flag_does(asked: dict[str, Any], line: str) -> None:
    stage, _, _ = opened(WHOLE, **asked)
    assert stage.plan()[0].startswith(line)

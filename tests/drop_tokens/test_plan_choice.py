"""Which plan is taken: the boldest of those that are proven one after the other, on rows that proposed nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.encoder.config.heads import HeadConfig
from compress.errors import ExitCode, UserError
from compress.stages.drop_tokens import choosing
from compress.stages.drop_tokens.choosing import PlanTrial, choose_plan
from compress.stages.drop_tokens.plans import MeasuredDrops
from evaluation.learn_then_test import draw_proposing

ROWS = 1000
MILD, MIDDLE, BOLD = (100, 75, 75), (100, 50, 50), (100, 25, 25)


class Context:
    """Of a stage, as far as the choice reads it."""

    def __init__(self, rows: int = ROWS) -> None:
        self.said: list[str] = []
        self.shown: list[Any] = []
        table = SimpleNamespace(split=lambda name: range(rows), task="classification", settings={})
        self.table = lambda: table
        self.recipe = SimpleNamespace(evaluation=SimpleNamespace(latency=SimpleNamespace(length=20, tokens=20)))
        self.device = "cpu"
        self.say, self.show = self.said.append, lambda *table: self.shown.append(table)
        self.workshop = SimpleNamespace(progress=lambda *_: Progress(), stop=lambda: None)


class Progress:
    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, done: int) -> None: ...


class Labelled:
    """Examples of rows of these numbers."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, places: np.ndarray) -> Labelled:
        return Labelled(self.numbers[places])


def choose(
    monkeypatch: pytest.MonkeyPatch, lost: dict[tuple[int, ...], int], *, drop: float = 1.0, confidence: float = 90.0,
    ours: float = 1.0, chunks: int = 1, quantization: object = None,
) -> tuple[Any, Context]:  # fmt: skip
    """lost: by each plan, of the rows that test, all of which the whole model answers right.  ours: milliseconds of the
    plan that is taken, 2 of the whole model.  chunks: of each row, of which the last alone is answered right or wrong.
    """
    context, model = Context(), SimpleNamespace(config=SimpleNamespace(depth=3, quantization=quantization))
    context.table().settings = {"long_text": "chunk"} if chunks > 1 else {}
    examples, read = Labelled(np.repeat(np.arange(ROWS), chunks)), []
    held_out = SimpleNamespace(labels=np.zeros(ROWS, dtype=np.int64))
    monkeypatch.setattr(choosing.TaskData, "encode", lambda *_: SimpleNamespace(validation=examples, held_out=held_out))
    monkeypatch.setattr(choosing, "sample_batches", lambda found, *_: read.append(found.numbers))
    drops = MeasuredDrops([{}] * 3, dict.fromkeys(range(101), 1.0), 0.0)
    monkeypatch.setattr(choosing, "measure_drops", lambda *_: drops)
    monkeypatch.setattr(MeasuredDrops, "list_plans", lambda *_: list(lost))
    monkeypatch.setattr(choosing, "drop_tokens", lambda model, plan: plan)
    monkeypatch.setattr(choosing, "prepare", lambda model: model)
    monkeypatch.setattr(choosing, "evaluation_batches", lambda *_: ())

    def answer(plan: Any, _: Any, tested: Labelled) -> np.ndarray:
        assert not draw_proposing(ROWS)[tested.numbers].any(), "no row that proposed tests"
        wrong = np.arange(len(tested) // chunks) < lost.get(plan if isinstance(plan, tuple) else (), 0)
        logits = np.zeros((len(wrong), chunks, 2))
        logits[:, -1] = np.stack((~wrong, wrong), 1)
        return logits.reshape(-1, 2)

    monkeypatch.setattr(choosing, "collect_logits", answer)
    monkeypatch.setattr(choosing, "measure_models", lambda *_: [SimpleNamespace(p50=ms) for ms in (2.0, ours)])
    loaded: Any = SimpleNamespace(model=model, heads={"task": HeadConfig("classification", labels=2)})
    spec: Any = SimpleNamespace(max_drop=drop, confidence=confidence, rows=64)
    found = choose_plan(loaded, spec, context)  # type: ignore[arg-type]
    assert draw_proposing(ROWS)[read[0]].all(), "plans are proposed by the others alone"
    return found, context


def test_the_boldest_plan_that_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    found, context = choose(monkeypatch, {MILD: 0, MIDDLE: 1, BOLD: 20})
    assert found.plan == MIDDLE
    assert [(t.plan, round(t.points, 2)) for t in found.tested] == [(MILD, 0.0), (MIDDLE, 0.14), (BOLD, 2.86)]
    assert [t.p_value <= 0.1 for t in found.tested] == [True, True, False]
    assert found.proof == (
        "with 90 % confidence, at most 1 point of accuracy is lost on texts like the validation rows, if the model was "
        "not chosen on these rows. 300 of 1,000 validation rows proposed plans from the mildest to the boldest, and "
        f"the other 700 tested 3 of them in this order. The method is learn then test, with an exact paired test: p = "
        f"{found.tested[1].p_value:.3f}"
    )
    assert context.shown[0][0] == "plans, on the 700 validation rows that test"


def test_times_name_their_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    _, context = choose(monkeypatch, {MILD: 0})
    assert context.shown[0][1][1] == "expected ms in torch"
    assert choosing.SERVED not in context.said
    _, context = choose(monkeypatch, {MILD: 0}, quantization="int8")
    assert choosing.SERVED in context.said


def test_texts_in_chunks_are_drawn_and_answered_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = choose(monkeypatch, {MILD: 0, MIDDLE: 1, BOLD: 20})
    found, context = choose(monkeypatch, {MILD: 0, MIDDLE: 1, BOLD: 20}, chunks=3)
    assert (found.proof, found.tested) == (whole.proof, whole.tested)
    assert context.shown[0][0] == "plans, on the 700 validation rows that test"


def test_none_is_tested_after_the_first_that_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = choose(monkeypatch, {MILD: 0, MIDDLE: 6, BOLD: 0})
    assert (found.plan, len(found.tested)) == (MILD, 2)
    found, _ = choose(monkeypatch, {MILD: 0, MIDDLE: 1, BOLD: 20}, confidence=99.0)
    assert (found.plan, len(found.tested)) == (MILD, 2), "a loss of one row is not proven so surely"


@pytest.mark.parametrize(
    ("lost", "how", "message"),
    [
        (
            {MILD: 6, BOLD: 9},
            {},
            r"no plan is proven to lose at most 1 point of accuracy \(90 % confidence\): the mildest plan lost",
        ),
        ({}, {}, "no plan is faster: no choice of tokens saves its own time; use prune-layers or quantize"),
        ({MILD: 0}, {"ours": 1.95}, "saves less than 5 % of the time within 1 point: 1.95 ms for a text of 20 tokens"),
    ],
)
def test_no_plan_that_is_of_use(lost: Any, how: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=message) as it:
        choose(monkeypatch, lost, **how)
    assert it.value.code == ExitCode.REFUSED


def test_what_cannot_be_proven_at_all() -> None:
    spec: Any = SimpleNamespace(max_drop=0.5, confidence=90.0)
    scores: Any = SimpleNamespace(heads={"task": HeadConfig("classification", labels=1, problem="regression")})
    with pytest.raises(UserError, match=r"max_drop is not supported for this task: .* regression; .*--keep-tokens"):
        choose_plan(scores, spec, Context())  # type: ignore[arg-type]
    classes: Any = SimpleNamespace(heads={"task": HeadConfig("classification", labels=2)})
    with pytest.raises(UserError, match=r"max_drop: 659 validation rows cannot prove .* below 0.5 points: 660 are"):
        choose_plan(classes, spec, Context(659))  # type: ignore[arg-type]


def test_the_table_of_a_run() -> None:
    columns, rows = choosing.tabulate([PlanTrial(MILD, 1.5, 0.25, 0.012)])
    assert rows == [("100, 75, 75", "1.50", "0.25", "0.012")]
    assert len(columns) == len(rows[0])

"""A criterion comparison before and after recovery: sets of layers, points lost, regret, rank, the random baseline."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from measured_models import ROWS, measured_model, scored_rows

from compress.console import Console
from compress.contracts import LayerChoice, RunOptions
from compress.errors import UserError
from compress.experiments import criteria
from compress.experiments.criteria import CriterionComparison, draw_layer_sets, list_layer_sets
from compress.experiments.criteria_table import Entry, Layers
from compress.run.folder import choose_base
from compress.run.jobs import Outcome
from compress.stages.prune_layers.subject import Worth
from evaluation.quality.runs import DrawnFigures

WHOLE = (0, 1, 2, 3)
RIGHT = {(0, 1): 150, (0, 2): 160, (0, 3): 120, (1, 2): 140, (1, 3): 130, (2, 3): 100, WHOLE: 180}
"""Rows that each set of layers answers right before recovery; its loss falls with them."""


class Model:
    """Stands for the model that is cut: worth is known for every set of two of its four layers."""

    metric = "accuracy"

    def worth(self, sets: Sequence[Layers]) -> dict[Layers, Worth]:
        return {kept: Worth(scored_rows(RIGHT[kept]), 1 - RIGHT[kept] / ROWS) for kept in sets}

    def points_lost(self, kept: Layers) -> float:
        return 100 * (RIGHT[WHOLE] - RIGHT[tuple(kept)]) / ROWS


def comparison(seeds: Sequence[int] = (0,), draws: int = 0, protected: Sequence[int] = ()) -> CriterionComparison:
    """One that has opened nothing: only the figures are looked at."""
    one = CriterionComparison.__new__(CriterionComparison)
    one.whole, one.protected, one.depths = WHOLE, frozenset(protected), [2]
    one.seeds, one.draws = list(seeds), draws
    one.subject, one.recipe, one.console = Model(), SimpleNamespace(seed=0), Console(quiet=True)  # type: ignore[assignment]
    one._measured = {}
    return one


def measured(one: CriterionComparison, right: dict[Layers, int]) -> None:
    """What recovery made of each set, alike for all seeds."""
    one._measured = {(kept, seed): measured_model("student", n) for kept, n in right.items() for seed in one.seeds}


# --- sets of layers -------------------------------------------------------------------------------------------------


def test_all_sets_hold_the_protected_layers() -> None:
    assert list_layer_sets(WHOLE, {0}, 2, 10) == [(0, 1), (0, 2), (0, 3)]
    assert list_layer_sets(WHOLE, {0, 3}, 2, 10) == [(0, 3)]
    assert list_layer_sets(WHOLE, (), 2, 6) is not None
    assert list_layer_sets(WHOLE, (), 2, 5) is None, "six are more than five"


def test_drawn_sets_differ_hold_the_protected_layers_and_follow_the_seed() -> None:
    layers = tuple(range(12))
    drawn = draw_layer_sets(layers, {0}, 6, 20, 1)
    assert len(set(drawn)) == 20
    assert all(len(kept) == 6 and 0 in kept and list(kept) == sorted(set(kept)) for kept in drawn)
    assert drawn == draw_layer_sets(layers, {0}, 6, 20, 1)
    assert drawn != draw_layer_sets(layers, {0}, 6, 20, 2)
    assert drawn[:5] == draw_layer_sets(layers, {0}, 6, 5, 1), "more draws keep the first"


def test_all_sets_are_taken_where_there_are_no_more_than_draws() -> None:
    assert draw_layer_sets(WHOLE, (), 2, 6, 1) == list_layer_sets(WHOLE, (), 2, 6)
    assert len(draw_layer_sets(WHOLE, (), 2, 5, 1)) == 5
    assert draw_layer_sets(WHOLE, (), 2, 0, 1) == []


# --- before recovery ------------------------------------------------------------------------------------------------


def test_points_regret_and_rank_before_recovery() -> None:
    entry = comparison([0, 1])._before_recovery("cka", 2, ((0, 1), (2, 3)))
    assert entry.points == pytest.approx(statistics.mean([15.0, 40.0]))
    assert entry.regret == pytest.approx(statistics.mean([15.0, 40.0]) - 10.0), "the best set loses 10 points"
    assert (entry.rank, entry.sets) == (statistics.mean([2, 6]), 6)


def test_no_regret_and_no_rank_where_not_all_sets_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteria, "LIMIT", 5)
    entry = comparison()._before_recovery("cka", 2, ((0, 1),))
    assert (entry.points, entry.regret, entry.rank, entry.sets) == (pytest.approx(15.0), None, None, None)


def test_a_criterion_that_cannot_choose_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    one = comparison()
    one.criteria, one.console = ["uniform", "fails"], Console()

    def choose(kind: str, depth: int, seed: int) -> Layers:
        if kind == "fails":
            raise UserError("the texts are too few")
        return (0, 2)

    one._choose = choose
    (entry,) = one.apply_criteria()
    assert (entry.criterion, entry.layers) == ("uniform", ((0, 2),))
    assert "fails to 2 layers: the texts are too few" in capsys.readouterr().err


def test_a_criterion_keeps_the_options_that_the_recipe_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row = SimpleNamespace(kind="cka", rows=7)
    one = comparison()
    one.place, one.studies = 0, {0: "study"}  # type: ignore[dict-item]
    one.recipe = SimpleNamespace(stages=[SimpleNamespace(criterion=row)])  # type: ignore[assignment]
    built: list[Any] = []
    choice = LayerChoice((1, 2), {}, {})
    monkeypatch.setattr(criteria, "build", lambda spec, _study: built.append(spec) or (lambda *_: choice))
    assert one._choose("cka", 2, 0) == (1, 2)
    one._choose("uniform", 2, 0)
    assert built[0] is row
    assert built[1].kind == "uniform"


# --- after recovery -------------------------------------------------------------------------------------------------


def test_scores_regret_and_rank_after_recovery_of_all_sets() -> None:
    one = comparison(draws=6)
    after = {(0, 1): 170, (0, 2): 165, (0, 3): 170, (1, 2): 176, (1, 3): 150, (2, 3): 140}
    measured(one, after)
    entry = one._scored(Entry("cka", 2, ((0, 1),), 15.0))
    assert entry.scores == (0.85,)
    assert entry.regret_after == pytest.approx(3.0), "points behind the best set, which has 88 %"
    assert entry.rank_after == 2, "one set is better; one as good does not count"


def test_a_part_of_the_sets_gives_scores_alone() -> None:
    one = comparison(draws=3)
    measured(one, dict.fromkeys(one.draw_random_sets(2), 150) | {(0, 1): 170})
    entry = one._scored(Entry("cka", 2, ((0, 1),), 15.0))
    assert (entry.scores, entry.regret_after, entry.rank_after) == ((0.85,), None, None)


# --- the random baseline --------------------------------------------------------------------------------------------


def worth_of(figure: Any) -> float:
    return float(figure(np.ones((1, ROWS)))[0])


def test_the_baseline_before_recovery_is_the_mean_of_all_sets() -> None:
    one = comparison([0, 1])
    coin = one._coin([Entry("cka", 2, ((0, 1), (0, 1)), 15.0)])
    assert coin is not None
    mean = statistics.mean(n / ROWS for kept, n in RIGHT.items() if kept != WHOLE)
    assert [worth_of(figure) for figure in coin] == pytest.approx([mean, mean]), "one for each seed"


def test_the_baseline_after_recovery_is_drawn_anew_where_not_all_sets_were_made() -> None:
    one = comparison(draws=3)
    drawn = one.draw_random_sets(2)
    measured(one, dict(zip(drawn, (100, 120, 140), strict=True)))
    coin = one._coin([Entry("cka", 2, (drawn[0],), 15.0, scores=(0.5,))])
    assert coin is not None
    assert isinstance(coin[0], DrawnFigures), "which sets were drawn is a sample too"
    assert worth_of(coin[0]) == pytest.approx(0.6)
    one.draws = 6
    measured(one, {kept: RIGHT[kept] for kept in one.draw_random_sets(2)})
    coin = one._coin([Entry("cka", 2, (drawn[0],), 15.0, scores=(0.5,))])
    assert coin is not None
    assert not isinstance(coin[0], DrawnFigures), "all sets are no sample"


def test_the_random_criterion_stands_for_the_baseline_where_nothing_was_drawn() -> None:
    one = comparison()
    measured(one, {(0, 1): 170, (1, 2): 150})
    here = [Entry("cka", 2, ((0, 1),), 15.0, scores=(0.85,)), Entry("random", 2, ((1, 2),), 20.0, scores=(0.75,))]
    coin = one._coin(here)
    assert coin is not None
    assert worth_of(coin[0]) == 0.75
    assert one._coin(here[:1]) is None
    assert one._coin([]) is None


def test_entries_of_a_depth_come_best_first_with_intervals_of_its_rows() -> None:
    one = comparison()
    entries = [one._before_recovery(kind, 2, (kept,)) for kind, kept in (("cka", (2, 3)), ("uniform", (0, 2)))]
    best, worse = one.rank_entries(entries)
    assert (best.criterion, worse.criterion) == ("uniform", "cka")
    assert worse.behind is not None
    assert worse.behind.value == pytest.approx(-0.3)
    assert worse.coin is not None
    assert worse.coin.value == pytest.approx(0.5 - statistics.mean(n / ROWS for k, n in RIGHT.items() if k != WHOLE))


def test_each_set_is_recovered_once_for_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = comparison([0, 1], draws=1)
    made: list[tuple[Layers, int, list[str]]] = []

    def recover(jobs: Sequence[tuple[Layers, int, list[str]]], *_: Any) -> Any:
        made.extend(jobs)
        return [Outcome({}, [measured_model("student", 170)]) for _ in jobs]

    monkeypatch.setattr(one, "_make_job", lambda layers, seed, whose, _: (layers, seed, list(whose)))
    monkeypatch.setattr(criteria, "run_jobs", recover)
    one.base, one.options, one.verb = Path("x"), RunOptions(), None
    ((drawn),) = one.draw_random_sets(2)
    entries = [
        Entry("cka", 2, (drawn, (0, 1) if drawn != (0, 1) else (0, 2)), 1.0),
        Entry("uniform", 2, (drawn,) * 2, 1.0),
    ]
    found = one.run_recovery(entries, SimpleNamespace(parent=None))  # type: ignore[arg-type]
    assert (drawn, 0, ["cka", "uniform", "draw 1"]) in made, "criteria that chose the same layers share their run"
    assert (drawn, 1, ["uniform", "draw 1"]) in made
    assert len(made) == len({(layers, seed) for layers, seed, _ in made}) == 3
    assert [entry.scores for entry in found] == [(0.85, 0.85)] * 2


def test_a_comparison_goes_on_in_the_newest_folder_that_has_one_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    resume = lambda: str(choose_base("x", RunOptions(resume=True), criteria._look))  # noqa: E731
    for name in ("x", "x-2", "x-3"):
        (tmp_path / "runs" / name / "contest").mkdir(parents=True)
    (tmp_path / "runs/x-3/contest/contest.json").touch()
    (tmp_path / "runs/x-4/notes").mkdir(parents=True)
    assert resume() == "runs/x-2"
    for name in ("x", "x-2"):
        (tmp_path / "runs" / name / "contest/contest.json").touch()
    assert resume() == "runs/x-3"

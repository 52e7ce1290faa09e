"""Which models answer in turn, and from what confidence on."""

from __future__ import annotations

from typing import Any

import numpy as np
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.cascade import LONGEST, CascadeTrial, ScoredExits, ScoredModels, compute_confidence, list_levels
from evaluation.learn_then_test import draw_proposing
from evaluation.thresholds import PAYS, CascadeChoice, Selection, choose_cascade

REFERENCE = 2


def draw_models(seed: int, rows: int = 120) -> ScoredModels:
    """Three models of rising quality and cost, each the more often right the surer it is; the last is the reference."""
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, (3, rows))
    skill = np.array([[0.0], [0.5], [0.8]])
    right = generator.uniform(size=(3, rows)) < confidence + (1 - confidence) * skill
    return ScoredModels(confidence, right, np.array([1.0, 3.0, 10.0]), np.full(3, 0.2), ["a", "a", "b"])


def choose(models: ScoredModels, bound: float, reference: int = REFERENCE, **how: Any) -> tuple[Selection, Any]:
    """What is chosen, and the models on the rows that tested it."""
    proposing = draw_proposing(models.right.shape[1])
    return choose_cascade(models, reference, bound, proposing, **how), models.take(~proposing)


def route(models: ScoredModels, choice: CascadeChoice) -> np.ndarray:
    """(N,) place in the chain of the model that answers each row, one row at a time."""
    out = []
    for row in range(models.right.shape[1]):
        place = 0
        while place < len(choice.thresholds):
            if models.confidence[choice.models[place], row] > choice.thresholds[place]:
                break
            place += 1
        out.append(place)
    return np.array(out)


def compute_loss(models: ScoredModels, choice: CascadeChoice) -> float:
    """Points of accuracy lost against the reference."""
    places = np.array(choice.models)[route(models, choice)]
    right = models.right[places, np.arange(len(places))]
    return float(100 * (models.right[REFERENCE].mean() - right.mean()))


def test_confidence_is_the_largest_probability() -> None:
    found = compute_confidence(np.log(np.array([[0.25, 0.75], [0.5, 0.5]], dtype=np.float32)))
    np.testing.assert_allclose(found, [0.75, 0.5], rtol=1e-6)
    assert compute_confidence(np.array([[0.0, 30.0]], np.float32))[0] < 1, "no row is above a threshold of 1"


@settings(deadline=None, max_examples=scaled(50))
@given(seed=st.integers(0, 10**6), bound=st.floats(0, 20))
def test_what_is_chosen_was_proven_on_the_rows_that_test(seed: int, bound: float) -> None:
    models = draw_models(seed)
    found, testing = choose(models, bound)
    assert found.rows == testing.right.shape[1] == 84
    for choice in (found.single, found.choice):
        assert np.isclose(compute_loss(testing, choice), choice.loss)
        assert choice.models == (REFERENCE,) or (choice.loss < bound and 0 < choice.p_value <= 0.1)
        assert len(choice.models) == len(choice.thresholds) + 1 <= LONGEST
    places = route(testing, found.choice)
    chain = found.choice.models
    np.testing.assert_allclose(found.choice.shares, [(places == i).mean() for i in range(len(chain))])
    costs = [models.cost(m, chain[0]) for m in chain]
    np.testing.assert_allclose(found.choice.ms, np.mean([sum(costs[: place + 1]) for place in places]))
    assert found.choice is found.single or found.choice.ms <= PAYS * found.single.ms


@settings(deadline=None, max_examples=scaled(25))
@given(seed=st.integers(0, 10**6))
def test_a_trial_counts_rows_one_by_one(seed: int) -> None:
    models = draw_models(seed)
    chain, place = (0, 1, 2), (20, 30)
    trial = CascadeTrial(models, chain, REFERENCE)
    choice = CascadeChoice(chain, trial.read_thresholds([np.intp(i) for i in place]), 0, (), 0, 0)
    places = route(models, choice)
    right, rows = models.right[places, np.arange(len(places))], models.right[REFERENCE]
    assert (trial.lost[place], trial.gained[place]) == ((rows & ~right).sum(), (right & ~rows).sum())
    np.testing.assert_allclose(trial.confidence[place], models.confidence[places, np.arange(len(places))].mean())
    np.testing.assert_allclose(trial.shares[:, *place], [(places == i).mean() for i in range(3)])


def test_tokens_are_used_again_where_tokenizers_are_equal() -> None:
    models = draw_models(0)
    assert models.cost(0, 0) == 1.2
    assert models.cost(1, 0) == 3.0
    assert models.cost(2, 0) == 10.2


def test_the_single_model_where_no_cascade_pays() -> None:
    models = draw_models(1)
    slow = ScoredModels(models.confidence, models.right, np.array([9.5, 9.7, 10.0]), models.tokenizing, "aab")
    found, _ = choose(slow, 0.0)
    assert found.choice is found.single
    assert (found.single.models, found.single.thresholds) == ((REFERENCE,), ())
    found, _ = choose(slow, 0.0, accepted=[1])
    assert found.single.models == (1,)
    same = ScoredModels(
        models.confidence, np.stack([models.right[REFERENCE]] * 3), slow.answering, slow.tokenizing, "aab"
    )
    found, _ = choose(same, 10.0)
    assert found.single.models == found.choice.models == (0,), "a smaller model alone is proven as a cascade is"


def draw_exits(seed: int, overhead: float = 0.1) -> ScoredExits:
    """Two exits and the model itself: layers take 2, 3 and 5 milliseconds."""
    drawn = draw_models(seed)
    return ScoredExits(
        drawn.confidence, drawn.right, np.array([2.0, 5.0, 10.0]), np.full(3, 0.2), [""] * 3, overhead
    )  # fmt: skip


def test_layers_that_exits_share_are_computed_once() -> None:
    exits = draw_exits(0)
    assert exits.list_singles() == [(2,)]
    assert list(exits.list_cascades()) == [(0, 2), (1, 2), (0, 1, 2)], "the model itself answers last"
    np.testing.assert_allclose(exits.costs((0, 1, 2)), [2.2, 3.1, 5.1])
    np.testing.assert_allclose(exits.costs((1, 2)), [5.2, 5.1])
    assert exits.costs((2,)) == [10.2]


@settings(deadline=None, max_examples=scaled(25))
@given(seed=st.integers(0, 10**6), bound=st.floats(1, 20))
def test_the_expected_time_of_exits_is_that_of_the_rows(seed: int, bound: float) -> None:
    exits = draw_exits(seed)
    found, testing = choose(exits, bound)
    assert found.single.models == (2,)
    assert found.choice.models[-1] == 2
    ms = np.cumsum(exits.costs(found.choice.models))[route(testing, found.choice)]
    np.testing.assert_allclose(found.choice.ms, ms.mean())
    assert found.choice is found.single or found.choice.ms <= PAYS * found.single.ms


def test_exits_that_cost_more_than_they_save_are_left_out() -> None:
    found, _ = choose(draw_exits(0, overhead=20.0), 10.0)
    assert found.choice is found.single


def test_no_row_is_near_a_threshold() -> None:
    np.testing.assert_allclose(list_levels(np.array([0.9, 0.6, 0.7, 0.7])), [0.65, 0.8])
    np.testing.assert_allclose(list_levels(np.full(4, 0.5)), [0.75])

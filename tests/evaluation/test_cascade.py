"""Which models answer in turn, and from what confidence on."""

from __future__ import annotations

import numpy as np
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.cascade import (
    LONGEST,
    PAYS,
    CascadeChoice,
    ScoredExits,
    ScoredModels,
    choose_cascade,
    compute_confidence,
    separate,
)

REFERENCE = 2


def draw_models(seed: int, rows: int = 120) -> ScoredModels:
    """Three models of rising quality and cost, each the more often right the surer it is; the last is the reference."""
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, (3, rows))
    skill = np.array([[0.0], [0.5], [0.8]])
    right = generator.uniform(size=(3, rows)) < confidence + (1 - confidence) * skill
    return ScoredModels(confidence, right, np.array([1.0, 3.0, 10.0]), np.full(3, 0.2), ["a", "a", "b"])


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
def test_never_above_the_allowed_loss_on_the_rows_it_saw(seed: int, bound: float) -> None:
    models = draw_models(seed)
    for choice in choose_cascade(models, REFERENCE, bound):
        assert np.isclose(compute_loss(models, choice), choice.loss)
        assert choice.loss <= bound or choice.models == (REFERENCE,)
        assert choice.bound <= bound or choice.models == (REFERENCE,)
        assert len(choice.models) == len(choice.thresholds) + 1 <= LONGEST


@settings(deadline=None, max_examples=scaled(50))
@given(seed=st.integers(0, 10**6))
def test_shares_and_milliseconds_are_those_of_the_rows(seed: int) -> None:
    models = draw_models(seed)
    single, choice = choose_cascade(models, REFERENCE, 3.0)
    places = route(models, choice)
    np.testing.assert_allclose(choice.shares, [(places == i).mean() for i in range(len(choice.models))])
    costs = [models.cost(m, choice.models[0]) for m in choice.models]
    np.testing.assert_allclose(choice.ms, np.mean([sum(costs[: place + 1]) for place in places]))
    assert choice is single or choice.ms <= PAYS * single.ms


@settings(deadline=None, max_examples=scaled(50))
@given(seed=st.integers(0, 10**6), bounds=st.tuples(st.floats(0, 20), st.floats(0, 20)))
def test_a_larger_bound_is_never_slower_and_thresholds_fall(seed: int, bounds: tuple[float, float]) -> None:
    models = draw_models(seed)
    two = ScoredModels(models.confidence[1:], models.right[1:], models.answering[1:], models.tokenizing[1:], "ab")
    tight, loose = (choose_cascade(two, 1, bound)[1] for bound in sorted(bounds))
    assert loose.ms <= tight.ms
    if len(tight.models) == len(loose.models) == 2:
        assert loose.thresholds[0] <= tight.thresholds[0]


def test_tokens_are_used_again_where_tokenizers_are_equal() -> None:
    models = draw_models(0)
    assert models.cost(0, 0) == 1.2
    assert models.cost(1, 0) == 3.0
    assert models.cost(2, 0) == 10.2


def test_the_single_model_where_no_cascade_pays() -> None:
    models = draw_models(1)
    slow = ScoredModels(models.confidence, models.right, np.array([9.5, 9.7, 10.0]), models.tokenizing, "aab")
    single, choice = choose_cascade(slow, REFERENCE, 0.0)
    assert choice is single
    assert choice.models == (REFERENCE,)
    assert choice.thresholds == ()
    single, _ = choose_cascade(slow, REFERENCE, 0.0, accepted=[1])
    assert single.models == (1,)


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
    single, choice = choose_cascade(exits, REFERENCE, bound)
    assert single.models == (2,)
    assert choice.models[-1] == 2
    if choice is single:
        return
    ms = np.cumsum(exits.costs(choice.models))[route(exits, choice)]
    np.testing.assert_allclose(choice.ms, ms.mean())
    assert choice.ms <= PAYS * single.ms
    assert compute_loss(exits, choice) <= choice.bound <= bound


def test_exits_that_cost_more_than_they_save_are_left_out() -> None:
    single, choice = choose_cascade(draw_exits(0, overhead=20.0), REFERENCE, 3.0)
    assert choice is single


def test_no_row_is_near_a_threshold() -> None:
    confidence = np.array([0.6, 0.7, 0.9])
    assert separate(0.7, confidence) == 0.8
    assert separate(0.9, confidence) == 0.95
    assert ((confidence > separate(0.6, confidence)) == (confidence > 0.6)).all()

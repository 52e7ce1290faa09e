"""Thin matrices: every method is exact at full rank, the whitened one best on its input; ranks fit what was asked."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from compress import registry
from compress.cli._flags import resolve
from compress.contracts import Batch, FactorMethod, Factors, MatrixStatistics, Needs, RunOptions
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.sharing import Sharing
from compress.encoder.config.unsupported import refuse_apart
from compress.encoder.infer.statistics import inputs as inputs_of
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.recipe.schema import LatencySpec
from compress.stages.factorize import allocation, conversion, sensitivity, timing
from compress.stages.factorize.allocation import Candidate
from compress.stages.factorize.flags import TABLE
from compress.stages.factorize.stage import METHODS

KINDS = list(registry.parts(METHODS))


def method(kind: str) -> FactorMethod:
    return registry.load(METHODS, kind)()


def seen(out: int, inputs: int, *, mean: bool = True, seed: int = 0) -> tuple[MatrixStatistics, torch.Tensor]:
    """A matrix and what it was seen to read, (T, in): correlated, uneven, not centred."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(200, inputs, generator=random).double() @ torch.randn(inputs, inputs, generator=random).double()
    x = x * torch.linspace(0.05, 2, inputs).double() + torch.randn(inputs, generator=random).double()
    weight = torch.randn(out, inputs, generator=random).double()
    fisher = torch.rand(out, inputs, generator=random).double()
    return MatrixStatistics(weight, x.T @ x / len(x), x.mean(0) if mean else None, fisher), x


def lost(one: MatrixStatistics, factors: Factors, x: torch.Tensor, rank: int) -> float:
    """Mean square of what the outputs miss, the bias included."""
    left = (one.weight - factors.outer[:, :rank] @ factors.inner[:rank]) @ x.T
    if factors.centred:
        assert one.mean is not None
        left = left - left.mean(1, keepdim=True)
    return float(left.square().sum(0).mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("out", "inputs"), [(7, 5), (5, 7), (6, 6)])
def test_full_rank_is_the_matrix_and_values_fall(kind: str, out: int, inputs: int) -> None:
    one, x = seen(out, inputs)
    made = method(kind)(one)
    assert made.outer.shape == (out, min(out, inputs))
    assert made.inner.shape == (min(out, inputs), inputs)
    assert lost(one, made, x, min(out, inputs)) < 1e-18 * float(x.square().sum() * one.weight.square().sum())
    assert (made.values.diff() <= 1e-9).all()


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_never_is_does_not_break_it(kind: str) -> None:
    one, x = seen(6, 5)
    assert one.inputs is not None
    assert one.fisher is not None
    assert one.mean is not None
    one.inputs[2], one.inputs[:, 2], one.mean[2], x[:, 2], one.fisher[:, 2] = 0, 0, 0, 0, 0
    made = method(kind)(one)
    assert torch.isfinite(made.outer).all()
    assert torch.isfinite(made.inner).all()
    nothing = dataclasses.replace(one, inputs=torch.zeros(5, 5).double(), fisher=torch.zeros(6, 5).double())
    assert torch.isfinite(method(kind)(dataclasses.replace(nothing, mean=None)).inner).all()


@pytest.mark.parametrize("mean", [True, False])
def test_whitened_tells_its_error_and_nothing_is_better(mean: bool) -> None:
    for seed in range(5):
        one, x = seen(8, 6, mean=mean, seed=seed)
        best = method("whitened")(one)
        for rank in range(1, 6):
            error = lost(one, best, x, rank)
            assert error == pytest.approx(float(best.values[rank:].sum()), rel=1e-6)
            for kind in KINDS:
                assert lost(one, method(kind)(one), x, rank) >= error * (1 - 1e-9), (kind, rank)


def test_plain_svd_is_the_nearest_matrix() -> None:
    one, _ = seen(8, 6)
    made = method("svd")(one)
    for rank in range(1, 6):
        left = one.weight - made.outer[:, :rank] @ made.inner[:rank]
        assert float(left.square().sum()) == pytest.approx(float(made.values[rank:].sum()), rel=1e-9)


# --- ranks ----------------------------------------------------------------------------------------------------------

SHAPES = st.lists(
    st.tuples(st.integers(2, 40), st.integers(2, 40), st.integers(0, 10_000)), min_size=1, max_size=6
)  # fmt: skip


def candidates(shapes: list[tuple[int, int, int]]) -> dict[str, Candidate]:
    made = {}
    for number, (out, inputs, seed) in enumerate(shapes):
        energies = np.sort(np.random.default_rng(seed).exponential(size=min(out, inputs)) ** 3)[::-1]
        made[str(number)] = Candidate(out, inputs, energies)
    return made


def error(known: dict[str, Candidate], ranks: dict[str, int]) -> float:
    return sum(float(known[name].errors()[rank]) for name, rank in ranks.items())


@settings(max_examples=scaled(60), deadline=None)
@given(SHAPES, st.floats(0.05, 0.99))
def test_the_budget_holds_and_global_ranks_lose_no_more_than_even_ones(
    shapes: list[tuple[int, int, int]], share: float
) -> None:
    known = candidates(shapes)
    whole = sum(c.whole for c in known.values())
    budget = max(int(share * whole), allocation.count_least_numbers(known))
    ranks = allocation.allocate_ranks(known, budget)
    assert allocation.count_numbers(known, ranks) <= budget
    assert all(1 <= rank <= known[name].max_rank for name, rank in ranks.items())
    even = allocation.allocate_uniform(known, budget)
    assert all(1 <= rank <= known[name].max_rank for name, rank in even.items())
    # The price is that of a convex hull: it may miss what one more rank of one matrix would bring, no more.
    slack = max(float((c.energies / c.energies.sum()).max()) for c in known.values())
    if allocation.count_numbers(known, even) <= budget:
        assert error(known, ranks) <= error(known, even) + slack + 1e-9


def test_even_ranks_keep_the_same_share() -> None:
    known = candidates([(32, 32, 0), (64, 32, 1)])
    assert allocation.allocate_uniform(known, (32 * 32 + 64 * 32) // 2) == {"0": 8, "1": 10}


def test_a_matrix_that_would_grow_stays_whole() -> None:
    known = candidates([(32, 32, 0), (2, 32, 1)])
    assert allocation.same_rank(known, 8) == {"0": 8}
    with pytest.raises(UserError, match=r"rank 20 does not make any matrix smaller.*use at most 15"):
        allocation.same_rank(known, 20)


# --- a model --------------------------------------------------------------------------------------------------------

CONFIG = EncoderConfig.uniform(vocabulary=60, hidden=16, layers=3, heads=4, feed_forward=24, max_positions=32)
WIRINGS = {
    "bert": CONFIG,
    "uneven": dataclasses.replace(CONFIG, layers=(LayerShape(4, 4, 24), LayerShape(2, 4, 9), LayerShape(3, 6, 40))),
    "whole layers shared": dataclasses.replace(CONFIG, layer_groups=(0, 1, 0)),
    "no biases, gated, pre-norm": dataclasses.replace(CONFIG, norm="pre", bias=False, gated=True),
}


def parent(config: EncoderConfig) -> Model:
    made = Model(config, {"task": HeadConfig("classification", labels=3)}).eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.2)
    return made


def batch(seed: int = 3) -> Batch:
    ids = torch.randint(0, 60, (14,), generator=torch.Generator().manual_seed(seed))
    zeros, places = torch.zeros(14, dtype=torch.long), torch.tensor([*range(9), *range(5)])
    return Batch(ids, zeros, places, torch.tensor([0, 9, 14]), 9, torch.arange(2))


def logits(model: Model) -> torch.Tensor:
    found = model(batch(), Needs(logits=True)).logits
    assert found is not None
    return found.detach()


@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_model_of_thin_matrices_comes_nearer_with_every_rank(wiring: str) -> None:
    model = parent(WIRINGS[wiring])
    inputs = inputs_of(model, [batch(seed) for seed in range(20)])
    found = conversion.factorize_matrices(model, method("whitened"), inputs=inputs, fisher={})
    known = conversion.candidates(model, found)
    assert all(one.energies[0] > 0 for one in known.values())
    most = {name: min(c.out, c.inputs) - 1 for name, c in known.items()}
    expected, gaps = logits(model), []
    for ranks in (dict.fromkeys(known, 1), {name: max(1, m // 2) for name, m in most.items()}, most, {}):
        made = conversion.convert(model, found, ranks, inputs).eval()
        gaps.append(float((logits(made) - expected).abs().max()))
        numbers = sum(p.numel() for p in made.encoder.parameters())
        assert numbers == made.config.count_parameters()
        assert model.config.count_parameters() - numbers == sum(
            known[name].whole - known[name].step * rank for name, rank in ranks.items()
        )
    assert gaps[3] == 0
    assert gaps[2] < gaps[0]


def test_the_bias_takes_up_the_mean() -> None:
    model = parent(CONFIG)
    inputs = inputs_of(model, [batch(seed) for seed in range(20)])
    found = conversion.factorize_matrices(model, method("whitened"), inputs=inputs, fisher={})
    made = conversion.convert(model, found, {"0.attention.query": 2}, inputs)
    whole, thin = (m.encoder.layers[0].attention.query for m in (model, made))  # pyright: ignore
    mean = inputs[whole][-1, :-1].float()
    torch.testing.assert_close(thin(mean), whole(mean), rtol=1e-4, atol=1e-5)


def test_refused_where_matrices_are_shared_apart() -> None:
    config = dataclasses.replace(CONFIG, sharing=Sharing((0, 0, 1), (0, 1, 1)))
    with pytest.raises(
        UserError, match=r"share matrices and also have their own parameters.*factorize the model before"
    ):
        refuse_apart(config, "here", "so", "factorize")


@pytest.mark.parametrize(("thin", "named"), [(0.5, False), (1.0, True), (2.0, True)])
def test_what_is_not_faster_is_named(thin: float, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the clock says, each shape once; the calls are those of a whole matrix and of two thin ones."""
    asked: list[tuple[int, ...]] = []

    def timed(calls: list[Any], plan: LatencySpec, device: str) -> list[Any]:
        whole, product = (call() for call in calls)
        assert whole.shape == product.shape
        asked.append(tuple(whole.shape))
        return [SimpleNamespace(p50=1.0), SimpleNamespace(p50=thin)]

    monkeypatch.setattr(timing, "measure_calls", timed)
    wide = Candidate(64, 32, np.ones(32))
    known = {"wide": wide, "twin": wide, "small": Candidate(8, 8, np.ones(8))}
    found = timing.find_slower_matrices({"wide": 4, "twin": 4, "small": 3}, known, 16, "cpu", LatencySpec(repeats=5))
    assert found == (frozenset(known) if named else frozenset())
    assert asked == [(16, 64), (16, 8)]


# --- flags ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"keep": 0.5, "rank": 8}, "--keep and --rank together"),
        ({"keep": 1.5}, "--keep: 1.5 is not possible; give a share between 0 and 1"),
        ({"max_mb": -1.0}, "--max-mb: -1 is not possible; give a number above 0"),
        ({"method": "whitend"}, "did you mean 'whitened'"),
        ({"rank": 8, "allocation": "error"}, "--allocation: has no effect with --rank"),
    ],
)
def test_flags_that_do_not_fit(flags: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as told:
        resolve(TABLE, "factorize", None, {**TABLE.none_given(), **flags}, RunOptions())
    assert message in str(told.value)


def test_a_recipe_that_splits_nothing() -> None:
    with pytest.raises(UserError, match="recipe distilbert has no factorize stage"):
        resolve(TABLE, "distilbert", None, TABLE.none_given(), RunOptions())


def test_ranks_by_what_errors_do_to_the_answers() -> None:
    """A matrix whose error no answer feels gives way to those that are felt; the model is left as it was."""
    model = parent(CONFIG)
    with torch.no_grad():  # nothing of the last layer's feed-forward part reaches the answers
        part: Any = model.encoder.layers[2]
        part.feed_forward.down.weight.zero_()
    rows = [batch(seed) for seed in range(20)]
    inputs = inputs_of(model, rows)
    found = conversion.factorize_matrices(model, method("whitened"), inputs=inputs, fisher={})
    known = conversion.candidates(model, found)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    felt = sensitivity.measure_sensitivity(model, found, known, inputs, rows, "task")
    assert felt.keys() == known.keys()
    curves = {name: one.felt for name, one in felt.items() if one.felt is not None}
    assert all(len(curve) == felt[name].max_rank + 1 for name, curve in curves.items())
    assert all((np.diff(curve) <= 0).all() for curve in curves.values()), "a higher rank never costs more"
    assert curves["2.feed_forward.up"].max() == 0
    assert curves["1.feed_forward.up"].max() > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    budget = sum(c.whole for c in known.values()) // 2
    ranks = allocation.allocate_ranks(felt, budget)
    assert allocation.count_numbers(felt, ranks) <= budget
    assert ranks["2.feed_forward.up"] <= ranks.get("1.feed_forward.up", 99)

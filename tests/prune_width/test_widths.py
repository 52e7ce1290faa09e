"""Importances, costs and searches of `prune-width` on toy encoders of every kind."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compress import registry
from compress.contracts import Batch, Needs, WidthScores
from compress.encoder.config.encoder import EncoderConfig, HeadConfig, LayerShape
from compress.encoder.config.sharing import Sharing
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.gates import Widths, apply_gates
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import KeptUnits, prune_units
from compress.encoder.reshape.students import take_layers
from compress.errors import UserError
from compress.objectives.hard_labels import Objective as HardLabels
from compress.stages.prune_width import search, selection
from compress.stages.prune_width.costs import Costs, Counts, operations, parameters
from compress.stages.prune_width.refit import Cut, refit, refit_all
from compress.stages.prune_width.sampled_labels import draw_labels
from compress.stages.prune_width.study import WidthStudy
from compress.stages.prune_width.subject import PACKAGE, build
from compress.stages.shared.divergence import divergence
from evaluation.cost.flops import count_flops
from evaluation.cost.size import count_parameters

KINDS = sorted(registry.parts(PACKAGE))
DEPTH = 3
SHAPES: dict[str, dict[str, Any]] = {
    "bert": {},
    "uneven": {"layers": (LayerShape(4, 4, 24), LayerShape(2, 4, 9), LayerShape(3, 6, 16))},
    "albert": {"layer_groups": (0,) * DEPTH, "embedding": 8},
    "groups": {"layer_groups": (0, 0, 1)},
    "shared": {"sharing": Sharing((0, 0, 1), (0, 1, 1), residual_rank=2)},
    "shared norms": {"sharing": Sharing((0, 0, 0), (0, 1, 2), own_vectors=False)},
    "modernbert": {
        "norm": "pre", "first_norm": False, "bias": False, "gated": True, "positions": "rotary", "segments": 0,
        "rotary_bases": (1e4,) * DEPTH, "pooler": False,
    },
    "gte": {"gate_bias": False, "gated": True, "positions": "rotary", "rotary_bases": (1e3,) * DEPTH},
    "nomic": {"linear_bias": False, "gated": True, "positions": "rotary", "rotary_bases": (1e3,) * DEPTH},
}  # fmt: skip


def model(shape: str = "bert", seed: int = 1) -> Model:
    values = {"vocabulary": 40, "hidden": 16, "max_positions": 32, "layers": (LayerShape(4, 4, 24),) * DEPTH}
    config = EncoderConfig(**{**values, **SHAPES[shape]})
    head = HeadConfig("classification", labels=2, style="bert" if config.pooler else "distilbert")
    made = Model(config, {"task": head}).initialize(seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # far from zero, so that layers do something
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.25)
    return made


def batches(count: int = 3, labelled: bool = True, seed: int = 0) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        lengths = torch.randint(3, 12, (8,), generator=generator)
        bounds = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        total = int(bounds[-1])
        made.append(
            Batch(
                input_ids=torch.randint(0, 40, (total,), generator=generator),
                segment_ids=torch.zeros(total, dtype=torch.int64),
                position_ids=torch.cat([torch.arange(int(n)) for n in lengths]),
                cu_seqlens=bounds,
                max_length=int(lengths.max()),
                row_ids=torch.arange(8),
                labels=torch.randint(0, 2, (8,), generator=generator) if labelled else torch.full((8,), -100),
            )
        )
    return made


FEW: dict[str, dict[str, Any]] = {"l0": {"steps": 6}, "movement": {"steps": 6}}
"""Steps of those that train, where nothing is to be learned."""


def importance(kind: str, study: WidthStudy, **options: Any) -> Any:
    return build(registry.schema(PACKAGE, kind).model_validate({"kind": kind, **options}), study)


# --- importances --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_importance_scores_every_kind_of_encoder(kind: str, shape: str) -> None:
    source = model(shape)
    study = WidthStudy(source, batches())
    part = importance(kind, study, **FEW.get(kind, {}))
    scores, whole = part(study), KeptUnits.everything(source.config)
    for ours, every in zip((*scores.heads, *scores.neurons), (*whole.heads, *whole.neurons), strict=True):
        assert ours.shape == (len(every),)
        assert ours.dtype == torch.float64
        assert bool(torch.isfinite(ours).all())
        assert bool((ours >= 0).all())
    assert part.hidden(study).shape == (16,)
    again = importance(kind, fresh := WidthStudy(model(shape), batches()), **FEW.get(kind, {}))(fresh)
    assert all(torch.equal(a, b) for a, b in zip(scores.heads, again.heads, strict=True)), "the same text, the same"
    assert all(p.requires_grad for p in source.parameters()), "the model is left as it was"


@pytest.mark.parametrize("kind", KINDS)
def test_an_importance_explains_itself(kind: str) -> None:
    part = registry.load(PACKAGE, kind)
    text = f"{registry.module(PACKAGE, kind).__doc__} {inspect.getdoc(part)}"
    for option in registry.schema(PACKAGE, kind).model_fields.keys() - {"kind"}:
        assert option in text or option in (inspect.getdoc(part) or ""), option
    for promise in ("reads_text", "in_loss", "rearranges", "refits"):
        assert isinstance(getattr(part, promise), bool)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_asked_for_by_those_that_read_them(kind: str) -> None:
    study = WidthStudy(model(), batches(labelled=False))
    built = registry.build(PACKAGE, registry.schema(PACKAGE, kind).model_validate({"kind": kind}))
    if built.reads_labels:
        with pytest.raises(UserError, match=f"importance {kind} needs labels, and no training row has one"):
            importance(kind, study)
    else:
        importance(kind, study, **FEW.get(kind, {}))(study)


def test_the_divergence_from_oneself_has_no_slope() -> None:
    study = WidthStudy(model(), batches())
    with pytest.raises(UserError, match=r"the model is its own teacher: at the start .* no gradient; use on: labels"):
        importance("taylor", study, on="teacher")(study)
    other = WidthStudy(model(), batches(labelled=False), teacher=prepare(model(seed=2)))
    assert float(importance("taylor", other, on="teacher")(other).heads[0].min()) > 0


def test_slopes_are_derivatives() -> None:
    """Against differences of the loss of each row, one gate at a time."""
    source, (text,) = model().double(), batches(1)
    found = WidthStudy(source, [text]).gradients()
    whole, step = Widths.ones(source.config), 1e-5

    def losses(unit: int, place: int, by: float) -> Tensor:
        gates = Widths.ones(source.config)
        gates.heads = [g.double() for g in gates.heads]
        gates.heads[unit][place] += by
        with apply_gates(source, gates), torch.no_grad():
            logits = source(text, Needs(logits=True)).logits
        return torch.nn.functional.cross_entropy(logits, text.labels, reduction="none")  # pyright: ignore

    for unit, place in itertools.product(range(DEPTH), range(4)):
        slope = (losses(unit, place, step) - losses(unit, place, -step)) / (2 * step)
        torch.testing.assert_close(found.heads[unit][:, place], slope, rtol=1e-3, atol=1e-4)
    assert len(whole.heads) == DEPTH


def test_curvatures_are_second_derivatives_of_the_divergence() -> None:
    """Gauss-Newton is exact for KL where the answers are as they are: against KL at a gate a little off."""
    source, text = model().double(), batches(2)
    found = WidthStudy(source, text).curvatures()
    step = 1e-3
    for unit, place in itertools.product(range(DEPTH), range(4)):
        total = 0.0
        for b in text:
            with torch.no_grad():
                before = source(b, Needs(logits=True)).logits.log_softmax(-1)  # pyright: ignore
            for by in (step, -step):
                gates = Widths.ones(source.config)
                gates.heads = [g.double() for g in gates.heads]
                gates.heads[unit][place] += by
                with apply_gates(source, gates), torch.no_grad():
                    after = source(b, Needs(logits=True)).logits.log_softmax(-1)  # pyright: ignore
                total += float((before.exp() * (before - after)).sum())
        measured = total / 16 / step**2  # KL ≈ ½ h δ², summed over ±δ
        assert float(found.heads[unit][place]) == pytest.approx(measured, rel=2e-2, abs=1e-6)


def test_answers_are_drawn_as_the_model_has_them() -> None:
    (text,) = batches(1)
    logits = torch.tensor([[2.0, 0.0]]).expand(8, 2)
    generator = torch.Generator().manual_seed(0)
    share = torch.stack([draw_labels(text, logits, generator).labels.float() for _ in range(400)]).mean()  # pyright: ignore
    assert float(share) == pytest.approx(1 / (1 + np.exp(2.0)), abs=0.02)
    scored = draw_labels(Batch(**{**vars(text), "labels": torch.zeros(8)}), torch.ones(8, 1), generator)
    assert scored.labels is not None
    assert scored.labels.dtype == torch.float32
    several = draw_labels(Batch(**{**vars(text), "labels": torch.zeros(8, 2)}), logits * 50, generator)
    assert several.labels is not None
    assert bool((several.labels[:, 0] == 1).all())


# --- costs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_costs_are_what_a_cut_model_has(shape: str) -> None:
    source = model(shape)
    counts = Counts(*(tuple(min(n, max(3, n // 2)) for n in part) for part in vars(Counts.of(source.config)).values()))
    kept = KeptUnits(tuple(tuple(range(n)) for n in counts.heads), tuple(tuple(range(n)) for n in counts.neurons))
    made = prune_units(source, kept)
    for one, of in ((source, Counts.of(source.config)), (made, counts)):
        assert parameters(source.config, source.head_configs).of(of) == count_parameters(one).total
        text = Batch(
            input_ids=torch.zeros(20, dtype=torch.int64),
            segment_ids=torch.zeros(20, dtype=torch.int64),
            position_ids=torch.arange(20),
            cu_seqlens=torch.tensor([0, 20]),
            max_length=20,
            row_ids=torch.arange(1),
        )
        counted = count_flops(lambda one=one, text=text: one(text, Needs(logits=True)))
        assert operations(source.config, source.head_configs, 20).of(of) == counted


# --- searches -----------------------------------------------------------------------------------------------------


def brute(curves: list[np.ndarray], tables: list[np.ndarray], budget: float) -> float:
    best = np.inf
    for ks in itertools.product(*(range(1, len(c)) for c in curves)):
        if sum(t[k] for t, k in zip(tables, ks, strict=True)) <= budget + 1e-9:
            best = min(best, sum(c[k] for c, k in zip(curves, ks, strict=True)))
    return float(best)


@settings(max_examples=scaled(40), deadline=None)
@given(st.data())
def test_the_search_is_the_best_that_can_be(data: Any) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    scores = [torch.tensor(data.draw(st.lists(st.floats(0, 1), min_size=n, max_size=n))) for n in sizes]
    curves = [search.losses(x) for x in scores]
    tables = [data.draw(st.integers(1, 4)) * np.arange(n + 1, dtype=np.float64) for n in sizes]
    least, most = (sum(float(t[k]) for t in tables) for k in (1, -1))
    budget = data.draw(st.integers(int(least), int(most)))
    found = search.solve_knapsack(curves, tables, budget)
    assert sum(float(t[k]) for t, k in zip(tables, found, strict=True)) <= budget + 1e-9
    assert min(found) >= 1
    ours = sum(c[k] for c, k in zip(curves, found, strict=True))
    assert ours <= brute(curves, tables, budget) + 1e-9


def test_uniform_search_weighs_heads_against_neurons() -> None:
    scores = WidthScores([torch.tensor([5.0, 4.0, 3.0, 2.0])] * 2, [torch.tensor([0.1] * 8)] * 2)
    costs = Costs(10.0, (4.0 * np.arange(5),) * 2, (1.0 * np.arange(9),) * 2, "x")
    counts = search.allocate_uniform(scores, costs, 10 + 2 * (16 + 1))
    assert counts == Counts((4, 4), (1, 1)), "neurons are worth little here"
    counts = search.allocate_uniform(scores, costs, 10 + 2 * (16 + 8))
    assert counts == Counts((4, 4), (8, 8))
    assert search.allocate_same_share(Counts((4, 4), (8, 8)), costs, 34) == Counts((2, 2), (4, 4))


def test_what_goes_together_is_weighed_together() -> None:
    """Fisher tells the rise with the lowest gone at once, from the whole matrix: by hand, for every count."""
    source, text = model(), batches()
    study = WidthStudy(source, text)
    scores = importance("fisher", study)(study)
    for curve, single, slopes in zip(
        search.curves_of(scores), (*scores.heads, *scores.neurons), study.gradients().all, strict=True
    ):
        assert curve[-1] == 0
        assert bool((np.diff(curve) <= 0).all())
        whole = slopes.T @ slopes / len(slopes)
        best = 0.0
        for kept in range(len(single) - 1, -1, -1):
            gone = torch.ones(len(single), dtype=torch.float64)
            gone[list(selection.find_highest(single, kept))] = 0
            best = max(best, float(gone @ whole @ gone) / 2)
            assert curve[kept] == pytest.approx(best)


def test_exchanges_find_what_cancels() -> None:
    """Two slopes that are each large and cancel go together; a diagonal cannot see that."""
    slopes = torch.tensor([[1.0, 2.0, -2.0, 5.0]]).repeat(4, 1).double()
    kept = selection.exchange_units(KeptUnits(((2, 3),), ((0,),)), Widths([slopes], [torch.zeros(4, 1).double()]))
    assert kept.heads == ((0, 3),)


# --- least squares ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_refitting_brings_a_cut_model_nearer(shape: str) -> None:
    source, text = model(shape), batches(12)
    whole = KeptUnits.everything(source.config)
    kept = KeptUnits(*(tuple(k[: max(3, 3 * len(k) // 4)] for k in part) for part in (whole.heads, whole.neurons)))
    plain, fitted = prune_units(source, kept), prune_units(source, kept)
    refit(fitted, source, kept, text[:10], lambda: None)

    def error(made: Model) -> float:
        with torch.no_grad():
            return sum(float((made(b).last_hidden - source(b).last_hidden).square().mean()) for b in text[10:])

    assert error(fitted) < 0.9 * error(plain)
    assert fitted.state_dict().keys() == plain.state_dict().keys()
    same = prune_units(source, whole)
    refit(same, source, whole, text[:10], lambda: None)
    assert error(same) < 1e-8, "where nothing went nothing changes"


@pytest.mark.parametrize("shape", ["bert", "modernbert"])
def test_the_whole_model_is_computed_once_for_all_that_are_cut_from_it(shape: str) -> None:
    source, text = model(shape), batches(2)
    whole = KeptUnits.everything(source.config)
    kept = KeptUnits(*(tuple(k[: len(k) // 2] for k in part) for part in (whole.heads, whole.neurons)))
    two = KeptUnits(whole.heads[:2], whole.neurons[:2])

    def cut() -> list[Cut]:
        shorter = prune_units(take_layers(source, (0, 2)), two)
        return [Cut(prune_units(source, kept), kept), Cut(shorter, two, (0, 2))]

    alone, together = cut(), cut()
    for one in alone:
        refit(one.made, source, one.kept, text, lambda: None, one.layers)
    runs = [count_runs(m) for m in (source, *(one.made for one in together))]
    refit_all(together, source, text, lambda: None)
    assert runs == [
        {"attention": layers * len(text), "feed_forward": layers * len(text) * times}
        for layers, times in ((DEPTH, 1), (DEPTH, 2), (1, 2))  # the last one's first layer is the whole model's
    ]
    for one, other in zip(alone, together, strict=True):
        assert all(map(torch.equal, one.made.state_dict().values(), other.made.state_dict().values()))
    first: Any = together[1].made.encoder.layers[0]
    assert all(map(torch.equal, first.parameters(), source.encoder.layers[0].parameters()))


def count_runs(made: Model) -> Counter[str]:
    """How often a part of any of its layers was computed from now on."""
    runs: Counter[str] = Counter()
    for layer in made.encoder.layers:
        for part in ("attention", "feed_forward"):
            getattr(layer, part).register_forward_hook(lambda *_, part=part: runs.update([part]))
    return runs


def test_the_divergence_is_that_of_the_answers() -> None:
    one, other, text = model(), model(seed=2), batches(2)
    assert divergence(one, one, text) == 0
    total = 0.0
    for b in text:
        with torch.no_grad():
            p, q = (m(b, Needs(logits=True)).logits.log_softmax(-1) for m in (one, other))  # pyright: ignore
        total += float((p.exp() * (p - q)).sum())
    assert divergence(other, one, text) == pytest.approx(total / 16, rel=1e-5)
    assert HardLabels().count(text[0]) == 8

"""Criteria for layers on toy encoders of every kind: what they choose, and what they share."""

from __future__ import annotations

import dataclasses
import inspect
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from compress import registry
from compress.contracts import Batch, LayerChoice, Needs
from compress.data.batches.randomness import draw_spread_rows
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.infer.layer_subsets import subset_outputs
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.reshape.students import take_layers
from compress.errors import UserError
from compress.stages.prune_layers.gates import apply_layer_gates, row_gradients
from compress.stages.prune_layers.stage import PACKAGE, build
from compress.stages.prune_layers.study import LayerStudy, neighbours
from evaluation.representation.hsic import UndefinedError

KINDS = sorted(registry.parts(PACKAGE))
DEPTH = 5
SHAPES: dict[str, dict[str, Any]] = {
    "bert": {},
    "albert": {"layer_groups": (0,) * DEPTH, "embedding": 8},
    "groups": {"layer_groups": (0, 0, 1, 1, 2)},
    "modernbert": {
        "norm": "pre", "first_norm": False, "bias": False, "gated": True, "positions": "rotary", "segments": 0,
        "rotary_bases": (1e4,) * DEPTH, "windows": (None, 3, 3, None, 3), "pooler": False,
    },
    "nomic": {"linear_bias": False, "gated": True, "positions": "rotary", "rotary_bases": (1e3,) * DEPTH},
}  # fmt: skip


def model(shape: str = "bert", seed: int = 1) -> Model:
    config = EncoderConfig.uniform(
        **{"vocabulary": 40, "hidden": 16, "layers": DEPTH, "heads": 2, "feed_forward": 24, "max_positions": 32}
        | SHAPES[shape]
    )
    head = HeadConfig("classification", labels=2, style="bert" if config.pooler else "distilbert")
    made = Model(config, {"task": head}).initialize(seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # far from zero, so that layers do something
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.25 * torch.randn(parameter.shape, generator=generator))
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


def criterion(kind: str, study: LayerStudy, **options: Any) -> Any:
    return build(registry.schema(PACKAGE, kind).model_validate({"kind": kind, **options}), study)


def chosen(kind: str, study: LayerStudy, keep: int, protected: set[int] | None = None, **options: Any) -> LayerChoice:
    return criterion(kind, study, **options)(study, keep, frozenset(protected or ()))


# --- what all of them promise -------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_criterion_keeps_what_it_should_of_every_kind_of_encoder(kind: str, shape: str) -> None:
    options = {"steps": 3} if kind == "learned_gates" else {}
    study = LayerStudy(model(shape), batches())
    for keep, protected in ((1, set()), (3, {0, 4})):
        choice = chosen(kind, study, keep, protected, **options)
        assert len(choice.keep) == keep
        assert list(choice.keep) == sorted(set(choice.keep))
        assert protected <= set(choice.keep)
        assert sorted([*choice.keep, *choice.reasons]) == list(range(DEPTH)), "every layer that goes has its reason"
        assert all(choice.reasons.values())
        assert all(np.isfinite(value) for value in (*choice.scores.values(), *choice.of_sets.values()))
    again = chosen(kind, LayerStudy(model(shape), batches()), keep, protected, **options)
    assert again == choice, "the same model and text give the same layers"


@pytest.mark.parametrize("kind", KINDS)
def test_a_criterion_explains_itself(kind: str) -> None:
    part = registry.load(PACKAGE, kind)
    text = f"{registry.module(PACKAGE, kind).__doc__} {inspect.getdoc(part)}"
    for option in registry.schema(PACKAGE, kind).model_fields.keys() - {"kind"}:
        assert option in text, option
    assert isinstance(part.reads_text, bool)
    assert part.reads_text or not part.reads_labels


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_asked_for_by_those_that_read_them(kind: str) -> None:
    study = LayerStudy(model(), batches(labelled=False))
    if registry.load(PACKAGE, kind).reads_labels:
        with pytest.raises(UserError, match=f"criterion {kind} needs labels, and no training row has one"):
            criterion(kind, study)
    else:
        chosen(kind, study, 3)


# --- what each of them says ---------------------------------------------------------------------------------------


def fake(matrix: list[list[float]]) -> Any:
    """A study whose CKA is known."""

    class Fake:
        depth = len(matrix) - 1

        def cka(self, *args: Any, **kwargs: Any) -> Any:
            values = np.ma.masked_invalid(np.array(matrix))
            return type("Instrument", (), {"matrix": lambda _: values})()

    return Fake()


def test_greedy_cka_compares_with_the_last_kept_layer() -> None:
    study = fake([[1, 0.9, 0.8, 0.1], [0.9, 1, 0.85, 0.2], [0.8, 0.85, 1, 0.3], [0.1, 0.2, 0.3, 1]])
    greedy = registry.load(PACKAGE, "cka")()
    choice = greedy(study, 1, frozenset())
    assert list(choice.reasons) == [0, 1], "0 is most like the embeddings; then 1 is compared with them, 0.8"
    assert choice.scores[1] == pytest.approx(0.8)
    assert choice.reasons[1] == "CKA 0.800 with the embeddings, the highest of those left"
    assert greedy(study, 2, frozenset({0})).keep == (0, 2)


def test_of_equal_layers_the_later_goes() -> None:
    study = fake([[1, 0.5, 0.5], [0.5, 1, 0.5], [0.5, 0.5, 1]])
    assert registry.load(PACKAGE, "cka")()(study, 1, frozenset()).keep == (0,)


def test_a_constant_output_is_no_likeness() -> None:
    nan = float("nan")
    study = fake([[nan, nan, nan], [nan, 1, 0.5], [nan, 0.5, 1]])
    assert registry.load(PACKAGE, "cka")()(study, 1, frozenset()).keep == (0,), "0 has no CKA with the embeddings"
    with pytest.raises(UserError, match=r"criterion cka cannot choose: .* constant"):
        registry.load(PACKAGE, "cka")()(study, 1, frozenset({1}))


def test_clusters_keep_the_first_of_each_block() -> None:
    study = fake(
        [
            [1.0, 0.2, 0.2, 0.1, 0.1],
            [0.2, 1.0, 0.9, 0.3, 0.3],
            [0.2, 0.9, 1.0, 0.3, 0.3],
            [0.1, 0.3, 0.3, 1.0, 0.8],
            [0.1, 0.3, 0.3, 0.8, 1.0],
        ]
    )
    clusters = registry.load(PACKAGE, "cka_clusters")()
    assert clusters(study, 2, frozenset()).keep == (0, 2)
    assert clusters(study, 2, frozenset({3})).keep == (0, 3)
    assert clusters(study, 2, frozenset({0, 1})).keep == (0, 1), "blocks of two protected layers are not joined"


def test_measured_losses_agree_with_each_other() -> None:
    study = LayerStudy(model(), batches())
    every = chosen("exhaustive", study, DEPTH - 1)
    assert every.keep == chosen("leave_one_out", study, DEPTH - 1).keep == chosen("greedy_loss", study, DEPTH - 1).keep
    three = chosen("exhaustive", study, 3)
    assert len(three.of_sets) == 10
    assert three.of_sets[three.keep] == min(study.loss(kept) for kept in combinations(range(DEPTH), 3))
    assert three.of_sets[three.keep] <= study.loss(chosen("greedy_loss", study, 3).keep)
    with pytest.raises(UserError, match=r"10 sets of 3 layers exceed the search limit: limit is 9"):
        chosen("exhaustive", study, 3, limit=9)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shut_gate_is_a_layer_that_is_not_there(shape: str) -> None:
    whole, batch = model(shape), batches()[0]
    cut = take_layers(whole, [0, 1, 3, 4])
    with torch.no_grad(), apply_layer_gates(whole, lambda layer: torch.tensor(float(layer != 2))):
        shut = whole(batch, Needs(logits=True)).logits
    torch.testing.assert_close(shut, cut(batch, Needs(logits=True)).logits, atol=1e-5, rtol=1e-4)
    assert whole(batch, Needs(logits=True)).logits is not None, "the hooks are gone"


@pytest.mark.thorough
@pytest.mark.parametrize("shape", SHAPES)
def test_sets_of_layers_answer_as_the_models_that_they_make(shape: str) -> None:
    whole = model(shape)
    sets = [kept for size in range(1, DEPTH + 1) for kept in combinations(range(DEPTH), size)]
    for batch in batches(2):
        found = dict(subset_outputs(prepare(whole), batch, sets, Needs(logits=True)))
        assert found.keys() == set(sets)
        for kept in sets:
            with torch.no_grad():
                alone = take_layers(whole, kept)(batch, Needs(logits=True)).logits
            torch.testing.assert_close(found[kept].logits, alone, atol=1e-5, rtol=1e-4)


def test_many_losses_are_those_of_each_alone() -> None:
    sets = [(0, 1), (0, 1, 3), (2,), (0, 1)]
    together = LayerStudy(model(), batches()).losses(sets)
    assert list(together) == sets[:3]
    assert together == {kept: pytest.approx(LayerStudy(model(), batches()).loss(kept), abs=1e-6) for kept in sets[:3]}


def test_learned_gates_shut_those_that_may_go_and_not_those_that_are_protected() -> None:
    study = LayerStudy(model(), batches(4))
    choice = chosen("learned_gates", study, 2, {0}, steps=60, pressure=50.0)
    open_ones = sum(value for layer, value in choice.scores.items() if layer != 0)
    assert open_ones == pytest.approx(1, abs=0.35), "pressed to one open gate beside the protected one"
    assert choice.scores[0] > 0.9, "nothing presses on a gate that stays open"


def test_gate_gradients_are_those_of_finite_differences() -> None:
    whole, batch = model().double(), batches()[0]
    study = LayerStudy(whole, [batch])
    found = row_gradients(whole, batch, study.summed_loss)
    assert found.shape == (DEPTH, 8)
    losses = []
    for value in (1 + 1e-4, 1 - 1e-4):
        with (
            torch.no_grad(),
            apply_layer_gates(whole, lambda layer, v=value: torch.tensor(v if layer == 1 else 1.0).double()),
        ):
            losses.append(float(study.summed_loss(whole(batch, Needs(logits=True)), batch)))
    assert float(found[1].sum()) == pytest.approx((losses[0] - losses[1]) / 2e-4, rel=1e-3)


def test_block_influence_and_angles_see_a_layer_that_does_nothing() -> None:
    made = model("modernbert")
    with torch.no_grad():  # pre-norm: x + 0
        made.encoder.layers[2].attention.output.weight.zero_()
        made.encoder.layers[2].feed_forward.down.weight.zero_()
    study = LayerStudy(made, batches())
    for kind in ("cka", "block_influence", "angular", "cka_clusters"):
        assert list(chosen(kind, study, DEPTH - 1).reasons) == [2], kind
    assert chosen("cka", study, DEPTH - 1, dynamic=True).keep == (0, 1, 3, 4)


def test_random_draws_by_the_seed_and_baselines_are_the_known_rules() -> None:
    made = {s: chosen("random", LayerStudy(model(), batches(1), seed=s), 3).keep for s in range(20)}
    assert len(set(made.values())) > 3
    study = LayerStudy(model(), batches(1))
    assert chosen("first", study, 2).keep == (0, 1)
    assert chosen("last", study, 2).keep == (3, 4)
    assert chosen("uniform", study, 1).keep == (4,)
    assert chosen("first", study, 2, {4}).keep == (0, 4)


@pytest.mark.parametrize(("total", "count"), [(10, 10), (1000, 16), (7, 3)])
def test_rows_are_drawn_from_all_of_the_split_and_anew_for_each_seed(total: int, count: int) -> None:
    draws = [draw_spread_rows(total, count, seed) for seed in range(5)]
    for places in draws:
        assert len(places) == count
        assert (np.diff(places) > 0).all()
        assert (places >= np.arange(count) * total // count).all()
        assert (places < np.arange(1, count + 1) * total // count).all()
    assert (draws[0] == draw_spread_rows(total, count, 0)).all()
    assert total == count or any((draws[0] != other).any() for other in draws[1:])


# --- the study ----------------------------------------------------------------------------------------------------


def test_a_layer_that_is_not_finite_is_named() -> None:
    made = model()
    with torch.no_grad():
        made.encoder.layers[3].output_norm.weight[0] = float("inf")
    with pytest.raises(UserError, match=r"m: the output of layer 3 is not finite; its weights are damaged"):
        LayerStudy(made, batches(), name="m").cka()


def test_one_batch_and_too_little_text() -> None:
    with pytest.raises(UserError, match="no text to score layers on"):
        LayerStudy(model(), [])
    short = dataclasses.replace(
        batches(1)[0], input_ids=torch.arange(3), segment_ids=torch.zeros(3, dtype=torch.int64),
        position_ids=torch.arange(3), cu_seqlens=torch.tensor([0, 3]), max_length=3, row_ids=torch.arange(1),
        labels=torch.zeros(1, dtype=torch.int64),
    )  # fmt: skip
    with pytest.raises(UserError, match="m: CKA needs at least 4 rows, found 3; give more text"):
        LayerStudy(model(), [short], name="m").cka()
    study = LayerStudy(model(), batches(1))
    with pytest.raises(UndefinedError, match=r"an interval of CKA needs 32 rows in minibatches of 4"):
        study.cka("cls").interval()
    assert neighbours(study.cka("cls").matrix().filled(np.nan))[1] <= 1, "8 rows are enough for a value"


def test_states_are_the_layers_own_outputs_before_the_final_norm() -> None:
    made = model("modernbert")
    batch, states = next(LayerStudy(made, batches(1)).states())
    assert len(states) == DEPTH + 1
    whole = made(batch, Needs(hidden_states=True)).hidden_states
    assert whole is not None
    torch.testing.assert_close(states[2], whole[2], atol=1e-5, rtol=1e-4)
    norm = made.encoder.final_norm
    assert norm is not None
    torch.testing.assert_close(norm(states[-1].clone()), whole[-1], atol=1e-4, rtol=1e-3)

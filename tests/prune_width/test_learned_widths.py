"""Importances that train: the target is reached, the model that is cut is the trained one, and it is better for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from test_widths import batches, importance, model

from compress.contracts import Batch, Needs, WidthScores
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.gates import Widths, apply_gates
from compress.encoder.modules.hard_concrete import chance, compute_final_gate, draw
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import KeptUnits, prune_units
from compress.errors import UserError
from compress.stages.prune_width import search, selection
from compress.stages.prune_width.costs import Counts
from compress.stages.prune_width.learning import GateLearning
from compress.stages.prune_width.study import Target, WidthStudy
from compress.stages.shared.divergence import divergence

KINDS = ("l0", "movement")


def text(teacher: Model, count: int = 4) -> list[Batch]:
    """Labelled as the model answers."""
    made = []
    for batch in batches(count):
        with torch.no_grad():
            logits = teacher(batch, Needs(logits=True)).logits
        assert logits is not None
        made.append(dataclasses.replace(batch, labels=logits.argmax(1)))
    return made


@pytest.fixture(scope="module", params=KINDS)
def learned(request: pytest.FixtureRequest) -> tuple[str, Model, WidthStudy, WidthScores]:
    """Kind, model, study and scores after a hundred steps towards half of the heads and a quarter of the neurons."""
    source = model()
    study = WidthStudy(source, text(source), target=lambda: Target(0.5, 0.25, uneven=request.param == "l0"))
    before = {name: x.clone() for name, x in source.state_dict().items()}
    told: list[tuple[int, int]] = []
    study.told = lambda done, steps: told.append((done, steps))
    scores = importance(request.param, study, steps=100, learning_rate=2e-3, on="teacher")(study)
    assert all(torch.equal(x, before[name]) for name, x in source.state_dict().items()), "the model stays as it was"
    assert study.trained is not None
    assert told == [(step, 100) for step in range(100)], "a training that takes minutes shows how far it is"
    return request.param, source, study, scores


def kept_of(scores: WidthScores) -> KeptUnits:
    """The highest of all layers together: half of the heads, a quarter of the neurons."""
    counts = Counts(
        tuple(search.allocate_one_kind(scores.heads, (1,) * 3, 6)),
        tuple(search.allocate_one_kind(scores.neurons, (1,) * 3, 18)),
    )
    return selection.select_highest(scores, counts)


@pytest.mark.thorough
def test_a_trained_model_loses_less_than_one_that_is_cut(learned: Any) -> None:
    _, source, study, scores = learned
    whole = prepare(source)
    made = prune_units(study.trained, kept_of(scores))
    plain = prune_units(source, kept_of(importance("taylor", study)(study)))
    assert divergence(prepare(made), whole, study.batches) < 0.8 * divergence(prepare(plain), whole, study.batches)


def test_training_ends_at_its_target(learned: Any) -> None:
    """Of l0 the expected share of open gates; of movement what the masks keep, which is what the cut keeps."""
    kind, source, study, scores = learned
    if kind == "l0":
        for part, share in ((scores.heads, 0.5), (scores.neurons, 0.25)):
            assert float(torch.cat(list(part)).mean()) == pytest.approx(share, abs=0.1)
        return
    kept = selection.select_highest(scores, Counts((2,) * 3, (6,) * 3))
    with apply_gates(study.trained, Widths.of(kept, source.config)), torch.no_grad():
        masked = study.trained(study.batches[0], Needs(logits=True)).logits
    found = prune_units(study.trained, kept)(study.batches[0], Needs(logits=True)).logits
    torch.testing.assert_close(found, masked, rtol=0, atol=1e-5)
    assert min(float(x.min()) for x in scores.heads) == 0


@pytest.mark.parametrize("shape", ["bert", "groups", "shared", "shared norms", "modernbert"])
def test_folded_gates_are_gates(shape: str) -> None:
    source = model(shape)
    study = WidthStudy(source, batches(1))
    learning = GateLearning(study, "both", 1e-3, stream=False)
    generator = torch.Generator().manual_seed(0)
    gates = [torch.rand(n, generator=generator) for n in learning.sizes]
    with apply_gates(source, Widths(gates[: learning.heads], gates[learning.heads :])), torch.no_grad():
        wanted = source(study.batches[0], Needs(logits=True)).logits
    learning.fold(gates)
    with torch.no_grad():
        found = learning.model(study.batches[0], Needs(logits=True)).logits
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_alone_can_be_learned_from_or_left_out(kind: str) -> None:
    source = model()
    unlabelled = WidthStudy(source, batches(labelled=False))
    importance(kind, unlabelled, steps=3)(unlabelled)
    with pytest.raises(UserError, match=f"importance {kind} needs labels, and no training row has one"):
        importance(kind, unlabelled, steps=3, on="labels")
    other = WidthStudy(source, batches())
    importance(kind, other, steps=3, on="labels")(other)


def test_gates_are_what_their_logits_say() -> None:
    generator = torch.Generator().manual_seed(0)
    for logit in (-2.0, 0.0, 3.0):
        logits = torch.full((20_000,), logit)
        drawn = draw(logits, generator)
        assert float((drawn > 0).float().mean()) == pytest.approx(float(chance(logits)[0]), abs=0.02)
    assert compute_final_gate(torch.tensor([-9.0, 0.0, 9.0])).tolist() == pytest.approx([0.0, 0.5, 1.0], abs=1e-3)
